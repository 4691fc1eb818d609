#!/usr/bin/env python3
"""bin/doctor and --plan: what is found, what it costs, that nothing stays. Usage: test_doctor.py TRAINER DOCTOR PREPARE_DATA"""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAINER, DOCTOR, PREPARE = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
TABLES = os.environ.get("GPT2_TOKENIZER") or os.path.join(ROOT, ".deps", "gpt2_bpe")
SHAPE = ["--layers", "1", "--heads", "1", "--channels", "16", "--seq_len", "16"]
TINY = ["--device", "cpu", *SHAPE, "--batch_size", "2", "--target_batch_size", "4", "--threads", "1"]
PARAMETERS = 50257 * 16 + 16 * 16 + 12 * 16 * 16 + 13 * 16 + 2 * 16  # wte, wpe, one block, the last LayerNorm


def write_shard(path, tokens):
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, tokens, *[0] * 253))
        file.write(struct.pack(f"<{tokens}H", *(i * 7 % 1000 for i in range(tokens))))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_doctor_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HOME": self.folder, "GPT2_TOKENIZER": TABLES}

    def call(self, code, *words, **more):
        done = subprocess.run([str(word) for word in words], cwd=self.folder, env=self.environment, text=True, capture_output=True, **more)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def everything(self):
        return sorted(os.path.join(at, name) for at, folders, files in os.walk(self.folder) for name in folders + files)


class Plan(Case):
    def plan(self, *flags):
        before = self.everything()
        done = self.call(0, TRAINER, "--plan", "--json", *flags)
        self.assertEqual(self.everything(), before)
        return json.loads(done.stdout)

    def test_numbers_by_hand(self):
        write_shard(os.path.join(self.folder, "train.bin"), 16 * 100 + 1)  # 100 sequences
        flags = [*TINY, "--train_data", "train.bin", "--max_steps", "50", "--max_lr", "1e-3", "--warmup_steps", "10", "--checkpoint_freq", "20"]
        plan = self.plan(*flags)
        self.assertEqual((plan["steps"], plan["tokens_per_step"], plan["tokens"]), (50, 4 * 16, 50 * 64))
        self.assertEqual((plan["batch_size"], plan["accumulation"], plan["ranks"]), (2, 2, 1))
        self.assertEqual(plan["epochs"], 2)
        self.assertEqual(plan["parameters"], PARAMETERS)
        self.assertAlmostEqual(plan["tokens_per_parameter"], 3200 / PARAMETERS, places=9)
        for name, rate in (("first", 1e-4), ("peak", 1e-3), ("last", 1e-4)):
            self.assertAlmostEqual(plan["lr"][name], rate, delta=1e-3 * rate)
        self.assertGreater(plan["tokens_per_second"], 0)  # an estimate
        memory = plan["memory_bytes"]
        # FP32; embeddings of 50,304 and 16 rows, the block and the last LayerNorm are each padded to multiples of 64 x 256.
        self.assertEqual(memory["parameters"], 4 * 16384 * (50 + 1 + 1))
        self.assertEqual((memory["gradients"], memory["Adam moments"]), (memory["parameters"], 2 * memory["parameters"]))
        checkpoints = plan["checkpoints"]
        self.assertEqual(checkpoints["bytes_each"], 3 * memory["parameters"] + 2**20)
        self.assertEqual((checkpoints["kept"], checkpoints["bytes"]), (3, 3 * checkpoints["bytes_each"]))  # 20, 40, 50
        self.assertEqual(self.plan(*flags, "--keep_checkpoints", "1")["checkpoints"]["kept"], 1)
        self.assertEqual(self.plan(*flags, "--keep_checkpoints", "1", "--keep_every", "40")["checkpoints"]["kept"], 2)
        self.assertGreater(self.plan(*flags, "--measure", "0.2")["tokens_per_second"], 0)
        write_shard(os.path.join(self.folder, "val.bin"), 16 * 9 + 1)
        evaluated = [*flags, "--val_data", "val.bin", "--max_steps", "10", "--eval_freq", "4"]
        self.assertEqual(self.plan(*evaluated)["evaluations"], 3)  # 4, 8, and the end
        self.assertEqual(self.plan(*evaluated, "--eval_at_start")["evaluations"], 4)
        self.assertEqual(self.plan(*evaluated, "--eval_at_start", "--eval_freq", "0")["evaluations"], 1)  # the first alone

        self.call(0, TRAINER, *flags, "--max_steps", "6", "--run_name", "short", "--sample_tokens", "0")
        saved = os.path.join(self.folder, "checkpoints_fp32/short/step_00000006")
        self.assertLess(sum(os.path.getsize(os.path.join(saved, name)) for name in os.listdir(saved)), checkpoints["bytes_each"])
        resumed = self.plan("--resume", "latest", "--max_steps", "30", "--train_data", "train.bin")
        self.assertEqual((resumed["steps_done"], resumed["steps"], resumed["tokens"]), (6, 24, 24 * 64))
        self.assertTrue(resumed["resumes"].endswith("short/step_00000006"))
        self.assertAlmostEqual(resumed["lr"]["first"], 7e-4, delta=1e-6)  # the seventh of ten steps of warm-up
        self.assertIn("from checkpoints_fp32/short/step_00000006 at step 6",
                      self.call(0, TRAINER, "--plan", "--resume", "latest", "--max_steps", "30").stdout)

    def test_a_gpu_that_is_not_there(self):
        flags = ["--device", "cuda", "--model", "gpt2", "--use_fp8", "--target_batch_size", "512", "--max_steps", "100", "--eval_freq", "0"]
        one, eight = self.plan(*flags), self.plan(*flags, "--gpus", "8")
        self.assertTrue(one["device_assumed"])
        self.assertEqual(one["device"], "NVIDIA H200")
        self.assertLess(abs(one["tokens_per_second"] / 971370 - 1), 0.01)  # docs/benchmarks.md
        self.assertAlmostEqual(one["hours"], 100 * 524288 / one["tokens_per_second"] / 3600, places=6)
        self.assertAlmostEqual(eight["tokens_per_second"] / one["tokens_per_second"], 8, places=6)
        self.assertAlmostEqual(eight["gpu_hours"], one["gpu_hours"], places=6)
        if one["memory_bytes"]:  # a build with the CUDA engine
            self.assertLess(abs(sum(one["memory_bytes"].values()) / 16.26e9 - 1), 0.03)  # 16.96 GB with CUDA's own 0.7
            self.assertLess(sum(eight["memory_bytes"].values()), sum(one["memory_bytes"].values()))
        text = self.call(0, TRAINER, "--plan", *flags).stdout
        for word in ("assumed", "GPU-hours", "tokens per parameter", "kept", "nothing was started"):
            self.assertIn(word, text)

    def test_what_fits_in_a_memory_limit(self):
        def planned(*flags):
            plan = self.plan("--device", "cuda", "--use_fp8", "--target_batch_size", "512", "--max_steps", "100", "--eval_freq", "0", *flags)
            return plan["batch_size"], {name: size for name, size in plan["memory_bytes"].items() if name != "copy for checkpoints"}

        most, memory = planned("--model", "gpt2")
        for model, gib in (("gpt2", 8), ("gpt2-medium", 24), ("gpt2-large", 48), ("gpt2-xl", 80)):
            size, memory = planned("--model", model, "--memory_limit", gib)
            self.assertLess(sum(memory.values()), gib * 2**30)
            self.assertGreaterEqual(size, 8)  # enough for the GPU, so without recomputing
            self.assertLessEqual(size, most)
        kept = planned("--model", "gpt2", "--batch_size", 64)[1]["activations"]
        self.assertEqual(planned("--model", "gpt2", "--batch_size", 64, "--recompute", "none")[1]["activations"], kept)
        block = planned("--model", "gpt2", "--batch_size", 64, "--recompute", "block")[1]["activations"]
        self.assertLess(block, kept / 3)
        self.assertEqual(planned("--model", "gpt2", "--batch_size", 64, "--memory_limit", 10)[1]["activations"], block)  # auto
        refused = self.call(6, TRAINER, "--plan", "--device", "cuda", "--model", "gpt2-xl", "--memory_limit", 16).stderr
        self.assertRegex(refused, r"error: (one sequence of this|the) model needs \S+ GB of GPU memory")

    def test_refuses_what_a_start_refuses(self):
        for code, flags in ((2, ["--max_stepz", "3"]), (2, ["--batch_size", "3"]), (2, ["--max_steps", "3", "--num_epochs", "1"]),
                            (3, ["--train_data", "nothing_*.bin"]), (4, ["--resume", "latest"])):
            start, plan = self.call(code, TRAINER, *TINY, *flags), self.call(code, TRAINER, *TINY, *flags, "--plan")
            self.assertEqual(plan.stderr, start.stderr)
        write_shard(os.path.join(self.folder, "file"), 17)
        for flags in ([], ["--plan"]):
            self.call(8, TRAINER, *TINY, "--checkpoint_dir", "file/below", *flags)
        os.symlink("nowhere/at/all", os.path.join(self.folder, "dangling"))
        os.makedirs(os.path.join(self.folder, "mine"))

        def forget_starts():
            for made in ("runs", "checkpoints_fp32"):
                shutil.rmtree(os.path.join(self.folder, made), ignore_errors=True)

        forget_starts()
        before = self.everything()
        for flag in ("--log_dir", "--checkpoint_dir"):
            self.call(0, TRAINER, *TINY, flag, "mine/a/b", "--plan")
            for place in ("dangling", "dangling/below", "/proc/none", "/sys/none"):
                flags = [*TINY, flag, place, "--run_name", "refused"]
                plan = self.call(8, TRAINER, *flags, "--plan")
                self.assertEqual(self.everything(), before)
                self.assertEqual(plan.stderr, self.call(8, TRAINER, *flags).stderr)
                forget_starts()
        self.call(2, TRAINER, *TINY, "--json")
        self.call(2, TRAINER, *TINY, "--plan", "--measure", "soon")
        self.call(2, TRAINER, *TINY, "--plan", "--eval_only")


class Doctor(Case):
    def examine(self, code, *flags, **more):
        done = self.call(code, DOCTOR, "--json", *TINY, *flags, **more)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["exit_code"], code)
        self.assertEqual(answer["verdict"] == "fail", code != 0)
        for finding in answer["findings"]:
            self.assertIn(finding["level"], ("ok", "warn", "fail"))
            self.assertTrue(finding["what"])
            self.assertTrue(finding["advice"] or finding["level"] == "ok", finding)
        return {finding["name"]: finding for finding in answer["findings"]}

    def test_a_healthy_machine_then_a_damaged_data_set(self):
        if not os.path.isdir(TABLES):
            self.skipTest("no BPE tables")
        with open(os.path.join(self.folder, "text.txt"), "w") as file:
            file.write("".join(f"Story {i} of a fox and an owl by the river.\n\n" * 20 for i in range(50)))
        self.call(0, PREPARE, "text.txt", "--separator", "", "--dataset", "tales", "--val_fraction", "0.1")
        before = self.everything()
        found = self.examine(0, "--dataset", "tales", "--data", "data/tales", "--max_steps", "30", "--checkpoint_dir", "a/b/c")
        self.assertEqual(self.everything(), before)
        self.assertEqual([finding for finding in found.values() if finding["level"] != "ok"], [])
        for name in ("FP8 on the CPU", "hashes", "data", "disk", "write speed", "checkpoint", "memory", "steps in FP32", "steps in FP8",
                     "share of FP8", "end of the run"):
            self.assertIn(name, found)
        self.assertIn("20 steps", found["steps in FP8"]["what"])
        self.assertIn("30 steps", found["end of the run"]["what"])

        shard = os.path.join(self.folder, "data/tales/train_000000.bin")
        with open(shard, "r+b") as file:  # far from both ends, which the trainer looks at
            file.seek(os.path.getsize(shard) // 2)
            file.write(b"\x01\x02")
        found = self.examine(3, "--dataset", "tales", "--data", "data/tales")
        self.assertEqual((found["hashes"]["level"], found["data"]["level"]), ("fail", "ok"))
        os.truncate(shard, os.path.getsize(shard) - 100)
        self.assertEqual(self.examine(3, "--dataset", "tales")["plan of the run"]["level"], "fail")

    def test_a_disk_that_cannot_be_written(self):
        write_shard(os.path.join(self.folder, "file"), 17)
        self.assertEqual(self.examine(8, "--checkpoint_dir", "file/below")["plan of the run"]["level"], "fail")
        full = self.examine(8, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
        self.assertEqual(full["checkpoint"]["level"], "fail")
        self.assertEqual(self.everything(), [os.path.join(self.folder, "file")])

    def test_killed_it_leaves_nothing_for_long(self):
        for signal_sent, code, leaves in ((signal.SIGTERM, 75, 0), (signal.SIGINT, 75, 0), (signal.SIGKILL, -signal.SIGKILL, 1)):
            doctor = subprocess.Popen([DOCTOR, *TINY, "--checkpoint_dir", "a/b"], cwd=self.folder, env=self.environment,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            deadline = time.monotonic() + 60
            while not any("/.doctor-" in path for path in self.everything()):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.005)
            doctor.send_signal(signal_sent)
            errors = doctor.communicate(timeout=60)[1]
            self.assertEqual(doctor.returncode, code, errors)
            self.assertEqual(bool(self.everything()), bool(leaves), self.everything())
        os.makedirs(os.path.join(self.folder, ".doctor-notes"))
        self.examine(0, "--checkpoint_dir", "a/b")
        self.assertEqual(self.everything(), [os.path.join(self.folder, ".doctor-notes")])

    def test_ctrl_c_during_the_steps(self):
        large = ["--device", "cpu", "--layers", "6", "--heads", "6", "--channels", "384", "--seq_len", "1024", "--batch_size", "4", "--target_batch_size", "4"]
        doctor = subprocess.Popen([DOCTOR, *large], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(doctor.kill)
        for line in doctor.stdout:
            if line.split()[1:2] == ["next"]:
                break
        self.assertRegex(line, r"up to 20 steps of one micro-batch in FP32, FP8: about .*, an estimate; Ctrl-C ends the checks")
        time.sleep(0.2)
        doctor.send_signal(signal.SIGINT)
        out, error = doctor.communicate(timeout=20)
        self.assertEqual((doctor.returncode, error), (75, "stopped\n"))
        self.assertNotIn("steps in FP32", out)

    def test_words_and_wrong_flags(self):
        text = self.call(6, DOCTOR, *SHAPE, "--device", "cuda").stdout
        self.assertRegex(text, r"(?m)^ fail  GPU +--device cuda: .*\n +-> use --device cpu")
        self.assertRegex(text, r"(?m)^ ok    FP8 on the CPU ")
        self.assertNotIn("\x1b", text)
        self.assertIn("a run would fail", text)
        self.assertIn("--data PATH", self.call(0, DOCTOR, "--help").stdout)
        self.assertIn("did you mean --max_steps", self.call(2, DOCTOR, "--max_stepz", "3").stderr)
        for flags in (["--data"], ["--data", ""], ["--data="], ["--data", "a", "--data", "b"], ["--eval_only"], ["--plan"], ["--config", "missing.toml"], ["--batch_size", "3", "--target_batch_size", "4"]):
            self.call(2, DOCTOR, *flags)


if __name__ == "__main__":
    unittest.main()
