#!/usr/bin/env python3
"""The built program from outside: exit codes, messages, files. Usage: test_cli.py PROGRAM"""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "./train_gpt2_fp8"
TINY = ["--device", "cpu", "--model", "nano", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "8",
        "--batch_size", "2", "--target_batch_size", "4", "--eval_sequences", "4", "--sample_tokens", "4",
        "--run_name", "run"]
STEP_LINE = re.compile(
    r"^step +\d+ \| epoch \d+ \| loss: \d+\.\d{6} \| lr: \d\.\d\de-\d\d \| norm: \d+\.\d{4} \| dt: \d+\.\d\dms "
    r"\| tok/sec: \d+\.\d\d \| (.* \| )?(FP32|FP8 \(emulated\))$")
PARITY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parity")
sys.path.insert(0, PARITY)
MXFP8 = "--fp8_scenario mxfp8 is not built on any GPU: --fp8_recipe applies"  # the same wherever it appears
LAUNCHERS = ("OMPI_", "PMI_", "SLURM_", "WORLD_SIZE", "RANK")


def shard(tokens, count=None, magic=20240520):
    """The bytes of an llm.c shard; `count` lies about how many tokens follow."""
    header = struct.pack("<3i", magic, 1, len(tokens) if count is None else count)
    return header + bytes(1024 - len(header)) + struct.pack(f"<{len(tokens)}H", *tokens)


def is_sanitized():
    return "asan" in subprocess.run(["ldd", PROGRAM], capture_output=True, text=True).stdout


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_cli_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        self.environment["CUDA_VISIBLE_DEVICES"] = ""
        # A sanitized build looks for leaks for seconds at every exit; the unit tests have done so already.
        self.environment.setdefault("ASAN_OPTIONS", "detect_leaks=0")

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        return path

    def run_program(self, *arguments, **environment):
        return subprocess.run([PROGRAM, *arguments], cwd=self.folder, env={**self.environment, **environment},
                              capture_output=True, text=True, timeout=120)

    def succeed(self, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def files(self):
        """Every file with its content: what a failure must not change."""
        found = {}
        for root, _, names in os.walk(self.folder):
            for name in names:
                with open(os.path.join(root, name), "rb") as file:
                    found[os.path.join(root, name)] = file.read()
        return found

    def fail_with(self, code, *arguments, says=(), **environment):
        before = self.files()
        done = self.run_program(*arguments, **environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")  # one line, and no stack trace
        for words in says:
            self.assertIn(words, done.stderr)
        self.assertEqual(self.files(), before)
        return done.stderr

    # ---- what works ----

    def test_version_and_help(self):
        self.assertRegex(self.succeed("--version"), r"^train_gpt2_fp8 \d+\.\d+\.\d+, (CPU only|CUDA \d+\.\d+)\n$")
        text = self.succeed("--help")
        for flag in ("--use_fp8", "--train_data", "--resume", "--help_all", "--print_config"):
            self.assertIn(flag, text)
        self.assertNotIn("--plan_cache", text)
        text = self.succeed("--help_all")
        for flag in ("--use_fp8", "--train_data", "--resume", "--recompute", "--kernels", "--memory_limit", "--plan_cache",
                     "--print_config"):
            self.assertIn(flag, text)
        self.assertIn("no effect on the CPU", text)

    def test_help_fits_the_width_and_knows_the_model(self):
        for columns in (60, 80, 120):
            for flag in ("--help", "--help_all"):
                text = self.run_program(flag, COLUMNS=str(columns)).stdout
                self.assertLessEqual(max(map(len, text.splitlines())), columns)
        words = " ".join(self.succeed("--help", "--model", "gpt2").split())
        for number in ("0.0006 for gpt2", "700 for gpt2", "19073 for gpt2"):
            self.assertIn(number, words)

    def test_print_config_says_what_auto_means(self):
        text = self.succeed("--print_config", "--model", "gpt2")
        self.assertRegex(text, r'(?m)^max_lr = "auto" # 0\.0006 for gpt2$')
        self.assertRegex(text, r'(?m)^max_steps = "auto" # 19073 for gpt2; less on little data$')
        again = self.succeed("--config", self.write("printed.toml", text), "--print_config")
        self.assertEqual(again, text)

    def test_completion_in_bash(self):
        script = self.write("completion.bash", self.succeed("--completion", "bash"))
        def complete(*words):
            commands = f"""source {script}; COMP_WORDS=({" ".join(words)} ''); COMP_CWORD={len(words)}
                COMP_WORDS[{len(words)}]=$LAST; _train_gpt2_fp8; printf '%s\\n' "${{COMPREPLY[@]}}" """
            def ask(last):
                done = subprocess.run(["bash", "-c", commands], env={**self.environment, "LAST": last}, text=True,
                                      capture_output=True, check=True)
                return done.stdout.split()
            return ask
        self.assertEqual(complete("train_gpt2_fp8")("--max_l"), ["--max_lr"])
        self.assertEqual(complete("train_gpt2_fp8")("--no-use_t"), ["--no-use_tensorboard"])
        self.assertEqual(complete("train_gpt2_fp8", "--lr_schedule")("co"), ["cosine", "constant"])
        self.assertEqual(complete("train_gpt2_fp8", "--model")("gpt2-x"), ["gpt2-xl"])
        self.fail_with(2, "--completion", "fish", says=["bash", "zsh"])

    @unittest.skipUnless(shutil.which("groff"), "no groff")
    def test_the_man_page_formats(self):
        page = self.succeed("--man_page")
        done = subprocess.run(["groff", "-man", "-Tascii", "-ww"], input=page, text=True, capture_output=True)
        self.assertEqual(done.stderr, "")
        for words in ("--target_batch_size", "EXAMPLES", "EXIT STATUS"):
            self.assertIn(words, re.sub(r".\x08|\x1b\[\d*m", "", done.stdout))

    def test_trains_on_the_built_in_sample(self):
        out = self.succeed(*TINY, "--max_steps", "3", "--eval_freq", "2")
        self.assertIn("note: no --train_data", out)
        self.assertIn("data/README.md", out)
        steps = [line for line in out.splitlines() if " | lr: " in line]
        self.assertEqual(len(steps), 3)
        for line in steps:
            self.assertRegex(line, STEP_LINE)
        self.assertIn("the grammar's own entropy is", out)
        self.assertNotIn("\x1b", out)  # plain lines in a pipe
        self.assertTrue(os.path.isfile(os.path.join(self.folder, "checkpoints_fp32/run/step_00000003/state.h5")))
        self.assertTrue(os.path.isfile(os.path.join(self.folder, "runs/run/metrics.jsonl")))

    def test_fp8_is_emulated_and_says_so(self):
        out = self.succeed(*TINY, "--max_steps", "2", "--use_fp8", "--run_name=")
        self.assertRegex([line for line in out.splitlines() if " | lr: " in line][-1], r"\| FP8 \(emulated\)$")
        self.assertIn("FP8 health", out)
        self.assertEqual(len([name for name in os.listdir(os.path.join(self.folder, "runs")) if "fp8" in name]), 1)

    def test_fp8_flags(self):
        out = self.succeed(*TINY, "--max_steps", "2", "--use_fp8", "--fp8_recipe", "current", "--fp8_scenario", "mxfp8",
                           "--fp8_bf16_layers", "last", "--no-fp8_auto_fallback", "--fp8_lm_head", "--fp8_detail")
        self.assertIn(f"note: {MXFP8}\n", out)
        self.assertIn(MXFP8, " ".join(self.succeed("--help_all").split()))
        for page in ("fp8.md", "troubleshooting.md"):
            with open(os.path.join(os.path.dirname(PARITY), "..", "docs", page), encoding="utf-8") as file:
                self.assertIn(MXFP8, file.read().replace("`", ""))
        self.assertIn("FP8 Training Enabled: hybrid (E4M3 forward, E5M2 backward) (emulated on the CPU)\n", out)
        self.assertIn("block 0 in BF16, no automatic fallback", out)
        self.assertNotIn("fc/act", out)  # the only block is in BF16: nothing of it in the health table
        self.assertRegex(out, r"lm_head/grad +E5M2 +static ")
        self.fail_with(2, *TINY, "--run_name", "two", "--fp8_bf16_layers", "1", says=["--fp8_bf16_layers", "0 to 0"])
        self.fail_with(2, "--fp8_recipe", "delay", says=["did you mean delayed?"])

    def test_print_config_reads_back(self):
        first = self.succeed(*TINY, "--prompt", 'say "hi" # now', "--no-use_tensorboard", "--print_config")
        path = self.write("again.toml", first)
        self.assertEqual(self.succeed("--config", path, "--print_config"), first)
        self.assertIn("max_lr = 0.5", self.succeed("--config", path, "--max_lr", "0.5", "--print_config"))

    def test_resume_and_list(self):
        self.assertIn("no checkpoints", self.succeed("--list_checkpoints"))
        self.succeed(*TINY, "--max_steps", "2")
        listed = self.succeed("--list_checkpoints")
        self.assertIn("step_00000002", listed)
        self.assertIn("latest", listed)
        out = self.succeed("--resume", "latest", "--max_steps", "4")
        self.assertEqual([line[:9] for line in out.splitlines() if " | lr: " in line], ["step    3", "step    4"])
        self.assertIn("nothing left", self.succeed("--resume", "latest"))

    def test_resume_says_what_changed(self):
        self.succeed(*TINY, "--max_steps", "10", "--max_lr", "1e-3")
        out = self.succeed("--resume", "latest", "--max_steps", "20", "--max_lr", "2e-3")
        self.assertIn("note: changed since the checkpoint: max_steps 10 -> 20, max_lr 0.001 -> 0.002\n", out)
        self.assertRegex(out, r"note: the learning rate rises again: 1\.00e-04 at the checkpoint, \S+ at step 11\n")

    def test_eval_only(self):
        out = self.succeed(*TINY, "--eval_only")
        self.assertRegex(out, r"step 0 \| val loss: 1\d\.\d{6} \| perplexity: \d+\.\d\d\n")
        self.assertEqual(os.listdir(self.folder), [])  # it only reads
        trained = self.succeed(*TINY, "--max_steps", "4", "--eval_freq", "2", "--checkpoint_freq", "2")
        self.succeed("--resume", "2", "--eval_only")
        before = self.files()
        out = self.succeed("--resume", "latest", "--eval_only")
        self.assertEqual(self.files(), before)
        loss = re.search(r"step 4 \| val loss: (\S+)", trained).group(1)
        self.assertIn(f"step 4 | val loss: {loss} | perplexity: ", out)
        self.assertIn("checkpoints_fp32/run/step_00000004", out)
        train = self.write("train.bin", shard(list(range(100))))
        self.fail_with(2, *TINY, "--eval_only", "--train_data", train, says=["--val_data"])

    def test_a_prompt_on_a_finished_run(self):
        self.succeed(*TINY, "--max_steps", "2")
        done = self.run_program("--resume", "2", "--prompt", "Once upon a time")
        if "BPE tables" in done.stderr:
            self.skipTest("no BPE tables")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 2 | sample: Once upon a time", done.stdout)
        self.assertNotIn("nothing left", done.stdout)

    def test_other_trainers_words(self):
        out = self.succeed(*TINY, "--max_iters", "2", "--learning-rate", "1e-3", "--cuda_graph", "--num_workers", "4", "--no_wandb")
        self.assertNotIn("wandb", out)
        for note in ("--max_iters is --max_steps here", "--learning-rate is --max_lr here",
                     "--num_workers has no effect: two threads read ahead", "--cuda_graph has no effect on the CPU"):
            self.assertIn(f"note: {note}\n", out)
        self.fail_with(2, "--gradient_accumulation_steps", "4", says=["needs --batch_size", "--target_batch_size"])
        self.fail_with(2, "configs/nano.toml", says=["use --config configs/nano.toml"])
        path = self.write("tiny.yaml", "max_steps: 1\nrun_name: from yaml\n")
        self.assertIn('run_name = "from yaml"\n', self.succeed("--config", path, "--print_config"))

    def test_a_short_text_is_not_trained_on_for_ever(self):
        train = self.write("train.bin", shard(list(range(100))))
        out = self.succeed(*TINY, "--train_data", train)
        self.assertIn("note: the default of 1200 steps would pass over this data 400 times: stopping after 120 steps, "
                      "40 epochs; --max_steps or --num_epochs overrides it\n", out)
        self.assertIn("done: 120 steps", out)
        self.fail_with(2, *TINY, "--run_name", "two", "--train_data", train, "--target_batch_size", "14",
                       says=["more than the 12 sequences", "--target_batch_size 12"])

    def test_list_names_the_step_of_a_loss(self):
        self.succeed(*TINY, "--max_steps", "4", "--eval_freq", "2", "--checkpoint_freq", "3", "--max_lr", "1e-3")
        run, *lines = self.succeed("--list_checkpoints").splitlines()
        self.assertEqual(run, "run run | 1x8")
        lines = {int(line.split()[1]): line for line in lines}
        self.assertRegex(lines[3], r"val loss +\d+\.\d{6} at step 2 +\|")
        self.assertRegex(lines[4], r"val loss +\d+\.\d{6} +\|")

    def test_no_save_best(self):
        self.assertRegex(self.succeed("--help_all"), r"--save_best")
        out = self.succeed(*TINY, "--max_steps", "5", "--eval_freq", "1", "--checkpoint_freq", "0", "--no-save_best")
        self.assertIn("best so far", out)
        self.assertEqual(re.findall(r"saved checkpoints_fp32/(\S+)", out), ["run/step_00000005"])
        with open(os.path.join(self.folder, "checkpoints_fp32/run/step_00000005/options.toml")) as file:
            self.assertIn("save_best = false\n", file.read())
        self.assertIn("save_best = true\n", self.succeed("--print_config"))

    def start_and_save(self):
        """A run without an end that has saved its first checkpoint."""
        process = subprocess.Popen([PROGRAM, *TINY, "--max_steps", "1000000", "--checkpoint_freq", "2",
                                    "--keep_checkpoints", "all"], cwd=self.folder,
                                   env=self.environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if " | saved " in line:
                break
        return process

    def test_two_runs_of_one_name(self):
        process = self.start_and_save()
        process.send_signal(signal.SIGSTOP)  # alive, but silent: what is there must not change
        message = f"error: another run is writing to runs/run: process {process.pid} on "
        for again in ([*TINY, "--max_steps", "1"], ["--resume", "latest"]):
            error = self.fail_with(2, *again, says=[message])
            self.assertIn("--run_name", error)
        # Other logs, but the same checkpoints: the two would replace each other's.
        error = self.fail_with(2, *TINY, "--max_steps", "1", "--log_dir", "logs",
                               says=[f"error: another run is writing to checkpoints_fp32/run: process {process.pid} on "])
        self.assertIn("--run_name", error)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "logs/run")))
        process.kill()
        process.wait(timeout=60)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "runs/run/.lock")))  # stale, and no hindrance
        for name in os.listdir(os.path.join(self.folder, "checkpoints_fp32/run")):
            if name.startswith("step_") and name != "step_00000002":
                shutil.rmtree(os.path.join(self.folder, "checkpoints_fp32/run", name))
        out = self.succeed("--resume", "2", "--max_steps", "4")  # where the kill left lines of later steps
        self.assertIn("step    4 ", out)
        with open(os.path.join(self.folder, "runs/run/metrics.jsonl")) as lines:
            steps = [entry["step"] for entry in map(json.loads, lines) if entry["type"] == "step"]
        self.assertEqual(steps, [1, 2, 3, 4])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "runs/run/.lock")))

    def test_two_runs_share_a_checkpoint_dir(self):
        process = self.start_and_save()
        self.succeed(*TINY, "--max_steps", "4", "--checkpoint_freq", "2", "--run_name", "other")  # at the same time
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 75)
        last = int(re.search(r"stopped at step (\d+)", rest).group(1))
        self.assertIn(f"  {PROGRAM} --resume checkpoints_fp32/run\n", rest)

        def steps(run):
            names = os.listdir(os.path.join(self.folder, "checkpoints_fp32", run))
            return sorted(int(name[5:]) for name in names if name.startswith("step_"))
        self.assertEqual(steps("other"), [2, 4])
        self.assertEqual(steps("run")[:2] + steps("run")[-1:], [2, 4, last])
        listed = self.succeed("--list_checkpoints").splitlines()
        self.assertEqual([line for line in listed if line.startswith("run ")], ["run other | 1x8", "run run | 1x8"])
        self.assertEqual(len([line for line in listed if "(latest)" in line]), 2)

    def test_resume_forms(self):
        for run, steps in (("one", 2), ("two", 3)):
            self.succeed(*TINY, "--max_steps", str(steps), "--checkpoint_freq", "1", "--run_name", run, "--eval_freq", "1")
        for arguments, found in {
                "latest": "two/step_00000003", "1": "two/step_00000001", "one": "one/step_00000002",
                "latest --run_name one": "one/step_00000002", "1 --run_name one": "one/step_00000001",
                "one/step_00000001": "one/step_00000001", "one/1": "one/step_00000001", "checkpoints_fp32": "two/step_00000003",
                "checkpoints_fp32/one": "one/step_00000002", "checkpoints_fp32/one/latest": "one/step_00000002",
                "checkpoints_fp32/latest": "two/step_00000003", "checkpoints/latest.pt": "two/step_00000003",
                "checkpoints_fp32/one/latest.pt": "one/step_00000002",
                "checkpoints_fp32/one/step_00000001/state.h5": "one/step_00000001"}.items():
            out = self.succeed("--resume", *arguments.split(), "--eval_only")
            self.assertIn(f"evaluated checkpoints_fp32/{found} on", out.replace("/state.h5", ""), arguments)
        for run in ("one", "two"):
            best = self.succeed("--resume", "best", "--run_name", run, "--eval_only")
            for form in ("best", "best.pt", "best_model.pt"):
                self.assertEqual(self.succeed("--resume", f"checkpoints_fp32/{run}/{form}", "--eval_only"), best)
        self.fail_with(4, "--resume", "latest", "--run_name", "three", says=["checkpoints_fp32/three"])
        os.remove(os.path.join(self.folder, "checkpoints_fp32/latest"))
        self.fail_with(4, "--resume", "1", says=["several runs", "by its path: checkpoints_fp32/one/step_00000001, checkpoints_fp32/two/step_00000001"])
        self.fail_with(2, *TINY, "--run_name", "latest", says=["'latest' is reserved for checkpoints"])

    def move_to_bf16(self, run):
        """As if it had been trained in BF16: only a GPU can."""
        os.makedirs(os.path.join(self.folder, "checkpoints_bf16"), exist_ok=True)
        os.rename(os.path.join(self.folder, "checkpoints_fp32", run), os.path.join(self.folder, "checkpoints_bf16", run))

    def test_an_fp32_run_of_an_earlier_version_continues_where_it_is(self):
        self.succeed(*TINY, "--max_steps", "2", "--checkpoint_freq", "1")
        self.assertEqual(sorted(os.listdir(self.folder)), ["checkpoints_fp32", "runs"])
        os.rename(os.path.join(self.folder, "checkpoints_fp32"), os.path.join(self.folder, "checkpoints_fp8"))
        for more in ([], ["--precision", "fp32"]):
            self.assertIn("evaluated checkpoints_fp8/run/step_00000002 on", self.succeed("--resume", "latest", "--eval_only", *more))
        out = self.succeed("--resume", "latest", "--precision", "fp32", "--max_steps", "3")
        self.assertIn("saved checkpoints_fp8/run/step_00000003", out)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "checkpoints_fp32")))
        self.fail_with(2, *TINY, says=["checkpoints_fp8/run holds the checkpoints of an earlier run"])  # the name is taken

    def test_both_default_folders(self):
        self.succeed(*TINY, "--max_steps", "2", "--checkpoint_freq", "1", "--run_name", "baseline")
        self.move_to_bf16("baseline")
        self.succeed(*TINY, "--max_steps", "3", "--run_name", "candidate")
        listed = self.succeed("--list_checkpoints")
        self.assertEqual([line for line in listed.splitlines() if line.startswith("run ")],
                         ["run baseline | 1x8", "run candidate | 1x8"])
        for path in ("checkpoints_bf16/baseline/step_00000001", "checkpoints_fp32/candidate/step_00000003 (latest)"):
            self.assertIn(path, listed)
        for which, found in {"baseline": "checkpoints_bf16/baseline/step_00000002",
                             "baseline/1": "checkpoints_bf16/baseline/step_00000001",
                             "latest": "checkpoints_fp32/candidate/step_00000003"}.items():
            self.assertIn(f"evaluated {found} on", self.succeed("--resume", which, "--eval_only"))
        out = self.succeed("--resume", "baseline", "--max_steps", "3")  # goes on where it is
        self.assertIn("saved checkpoints_bf16/baseline/step_00000003", out)
        self.assertIn("baseline", self.succeed("--list_checkpoints", "--checkpoint_dir", "checkpoints_bf16"))
        self.assertNotIn("baseline", self.succeed("--list_checkpoints", "--checkpoint_dir", "checkpoints_fp32"))

    def test_a_given_precision_looks_in_its_own_folder_first(self):
        self.succeed(*TINY, "--max_steps", "2", "--run_name", "candidate", "--use_fp8")
        self.succeed(*TINY, "--max_steps", "3", "--run_name", "baseline")
        self.move_to_bf16("baseline")
        self.write("checkpoints_bf16/latest", "baseline/step_00000003\n")  # it saved last
        self.write("checkpoints_fp8/latest", "candidate/step_00000002\n")
        self.assertIn("evaluated checkpoints_bf16/baseline/step_00000003", self.succeed("--resume", "latest", "--eval_only"))
        out = self.succeed("--resume", "latest", "--use_fp8", "--max_steps", "4")
        self.assertIn("resumed checkpoints_fp8/candidate/step_00000002 at step 2\n", out)
        self.assertNotIn("branches off", out)
        shutil.rmtree(os.path.join(self.folder, "checkpoints_fp8"))
        kept = {path: content for path, content in self.files().items() if "baseline" in path}
        out = self.succeed("--resume", "latest", "--use_fp8", "--max_steps", "5")  # only a baseline is there
        self.assertIn("note: baseline was trained in fp32, and this is fp8: this run branches off as baseline-fp8-from-3; "
                      "baseline is unchanged\n", out)
        self.assertIn("saved checkpoints_fp8/baseline-fp8-from-3/step_00000005", out)
        after = self.files()
        self.assertEqual({path: after[path] for path in kept}, kept)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "runs/baseline-fp8-from-3/metrics.jsonl")))

    def test_flags_win_over_the_file_for_pairs(self):
        for text, flags, expected in (('precision = "fp8"\n', ["--no-use_fp8"], "| FP32"),
                                      ('precision = "fp32"\n', ["--use_fp8", "--fp8_bf16_steps", "0"], "| FP8 (emulated)"),
                                      ("use_fp8 = true\n", ["--precision", "fp32"], "| FP32"),
                                      ("max_steps = 7\n", ["--num_epochs", "0.00001"], "done: 2 steps")):
            path = self.write("pair.toml", text)
            length = [] if "max_steps" in text else ["--max_steps", "1"]
            out = self.succeed(*TINY, "--run_name", f"r{len(os.listdir(self.folder))}{len(expected)}{len(flags)}", "--config",
                               path, *length, *flags)
            self.assertIn(expected, out, (text, flags))

    def test_the_resume_command_has_the_ranks(self):
        out = self.succeed(*TINY, "--max_steps", "2", "--gpus", "2", "--run_name", "two", "--checkpoint_freq", "1")
        process = subprocess.Popen([PROGRAM, "--gpus", "2", "--resume", "two", "--max_steps", "1000000"], cwd=self.folder,
                                   env=self.environment, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        out = ""
        for line in process.stdout:
            out += line
            if " | lr: " in line:
                process.send_signal(signal.SIGTERM)
                break
        out += process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 75)
        self.assertIn(f"  {PROGRAM} --resume checkpoints_fp32/two --gpus 2\n", out)
        self.assertNotIn("resumed by", out)
        one = self.succeed("--resume", "two", "--max_steps", "1")  # nothing left, and the note is printed all the same
        self.assertIn("note: saved by 2 ranks, resumed by 1\n", one)

    def test_nothing_left_changes_nothing(self):
        self.succeed(*TINY, "--max_steps", "4")
        before = self.files()
        out = self.succeed("--resume", "latest", "--max_steps", "2")
        self.assertIn("step 4 of 2 is done already: nothing left to train", out)
        self.assertEqual(self.files(), before)

    def test_a_name_is_given_once(self):
        self.succeed(*TINY, "--max_steps", "2")
        self.fail_with(2, *TINY, "--max_steps", "2", says=[
            "checkpoints_fp32/run holds the checkpoints of an earlier run of this name, up to step 2",
            f"{PROGRAM} --resume checkpoints_fp32/run)"])

    def test_an_earlier_step_branches_off(self):
        self.succeed(*TINY, "--max_steps", "4", "--checkpoint_freq", "2")
        kept = {path: content for path, content in self.files().items()
                if "/runs/run/" in path or "/checkpoints_fp32/run/" in path}
        out = self.succeed("--resume", "2", "--max_steps", "5")
        self.assertIn("note: run has checkpoints after step 2: this run branches off as run-from-2; "
                      "run is unchanged\n", out)
        self.assertIn("saved checkpoints_fp32/run-from-2/step_00000005", out)
        after = self.files()
        self.assertEqual({path: after[path] for path in kept}, kept)
        self.assertIn("evaluated checkpoints_fp32/run-from-2/step_00000005", self.succeed("--resume", "latest", "--eval_only"))
        self.assertNotIn("branches off", self.succeed("--resume", "run/2", "--eval_only"))

    def test_checkpoints_of_the_old_layout(self):
        self.succeed(*TINY, "--max_steps", "2")
        folder = os.path.join(self.folder, "checkpoints_fp32")
        os.rename(os.path.join(folder, "run/step_00000002"), os.path.join(folder, "step_00000002"))
        shutil.rmtree(os.path.join(folder, "run"))
        self.write("checkpoints_fp32/latest", "step_00000002\n")
        self.assertIn("checkpoints_fp32/step_00000002 (latest)\n", self.succeed("--list_checkpoints"))
        out = self.succeed("--resume", "latest", "--max_steps", "3")
        self.assertIn("resumed checkpoints_fp32/step_00000002 at step 2\n", out)
        self.assertIn("saved checkpoints_fp32/run/step_00000003", out)
        self.assertIn("resumed checkpoints_fp32/run/step_00000003", self.succeed("--resume", "latest"))

    def test_learning_rates_are_those_of_the_parity_script(self):
        try:
            import train_torch
        except ImportError as missing:
            self.skipTest(str(missing))
        for steps, warmup in ((1, 0), (2, 0), (2, 1), (9, 3), (9, 8), (4, 9)):
            self.succeed(*TINY, "--max_steps", str(steps), "--warmup_steps", str(warmup), "--max_lr", "6e-4",
                         "--min_lr_ratio", "0.1", "--checkpoint_dir", "other", "--run_name", f"{steps}-{warmup}")
            with open(os.path.join(self.folder, f"runs/{steps}-{warmup}/metrics.jsonl")) as lines:
                ours = [entry["lr"] for entry in map(json.loads, lines) if entry["type"] == "step"]
            theirs = [train_torch.learning_rate(step, 6e-4, 0.1, warmup, steps) for step in range(steps)]
            self.assertEqual(len(ours), steps)
            for our_rate, their_rate in zip(ours, theirs):
                self.assertAlmostEqual(our_rate / their_rate, 1, places=6)
            if warmup < steps:
                self.assertAlmostEqual(ours[-1] / 6e-5, 1, places=6)

    def interrupt(self, run, *signals):
        process = subprocess.Popen([PROGRAM, *TINY, "--run_name", run, "--max_steps", "1000000"], cwd=self.folder, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.startswith("step    3 "):
                break
        for number in signals:
            process.send_signal(number)
        out, error = process.communicate(timeout=60)
        return process.returncode, out, error

    def test_a_signal_saves_and_exits_75(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            run = f"run-{int(number)}"
            code, out, error = self.interrupt(run, number)
            self.assertEqual(code, 75, error)
            self.assertIn(f"{PROGRAM} --resume checkpoints_fp32/{run}\n", out)
            self.assertEqual(error, "stopping; Ctrl-C again to quit now\n")
            stopped = int(re.search(r"stopped at step (\d+)", out).group(1))
            out = self.succeed("--resume", "latest", "--max_steps", str(stopped + 1))
            self.assertIn(f"resumed checkpoints_fp32/{run}/step_{stopped:08d}", out)

    def test_a_signal_sent_twice_in_one_blow_saves(self):
        """timeout and terminals signal the process and its group."""
        for number in (signal.SIGTERM, signal.SIGINT):
            code, out, error = self.interrupt(f"run-{int(number)}", number, number)
            self.assertEqual(code, 75, error)
            self.assertIn(", saved; resume with:", out)

    def test_a_signal_after_another_one_saves(self):
        code, out, error = self.interrupt("run", signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self.assertEqual(code, 75, error)
        self.assertIn(", saved; resume with:", out)

    def test_a_signal_before_the_first_step(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            process = subprocess.Popen([PROGRAM, *TINY, "--config", "/dev/stdin"], cwd=self.folder, env=self.environment,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            caught = 0  # signals that it answers: it has come as far as main
            while not caught >> (number - 1) & 1:
                with open(f"/proc/{process.pid}/status") as status:
                    caught = int(re.search(r"SigCgt:\s*(\w+)", status.read()).group(1), 16)
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=20), 75)
            self.assertEqual(process.stderr.read(), "stopped before the first step: nothing to save\n")
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()

    def start(self, *arguments):
        process = subprocess.Popen([PROGRAM, *TINY, *arguments], cwd=self.folder, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        return process

    def test_a_stop_within_a_step_discards_it_and_loses_nothing(self):
        def losses(run):
            with open(os.path.join(self.folder, f"runs/{run}/metrics.jsonl")) as lines:
                return [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in map(json.loads, lines) if entry["type"] == "step"]
        for precision in ("fp32", "fp8"):
            flags = ["--precision", precision, "--fp8_bf16_steps", "0", "--batch_size", "20", "--target_batch_size", "200", "--max_steps", "2", "--threads", "1"]
            self.succeed(*TINY, *flags, "--run_name", "whole-" + precision)
            process = self.start(*flags, "--run_name", "cut-" + precision)
            while not process.stdout.readline().startswith("step    1 "):
                pass
            process.send_signal(signal.SIGINT)  # within the 10 micro-batches of the second step
            out, error = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 75, error)
            self.assertIn("stopped at step 1 of 2, saved; resume with:", out)
            self.succeed("--resume", "cut-" + precision)
            self.assertEqual(losses("cut-" + precision), losses("whole-" + precision))

    def test_a_run_that_never_stepped_leaves_no_folder(self):
        process = self.start("--target_batch_size", "500000", "--threads", "1")  # a step that takes minutes
        before = ""
        for line in process.stdout:
            before += line
            if line.strip().startswith("seed"):
                break
        self.assertRegex(before, r"time +about \d+[mh] .* a step, .* an estimate, .*\n +Ctrl-C stops between micro-batches, about ")
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (75, "stopped before the first step: nothing to save\n"), error)
        self.assertEqual(os.listdir(self.folder), [])
        process = self.start("--layers", "8", "--channels", "256", "--eval_at_start")
        while process.poll() is None and not os.path.exists(os.path.join(self.folder, "checkpoints_fp32/run/.lock")):
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)  # while the model is made
        process.communicate(timeout=60)
        self.assertEqual((process.returncode, os.listdir(self.folder)), (75, []))
        os.makedirs(os.path.join(self.folder, "runs"))  # the user's
        path = self.write("beyond.bin", shard([1, 2, 60000, 4] * 20))
        self.assertEqual(self.run_program(*TINY, "--train_data", path).returncode, 3)
        self.assertEqual(sorted(os.listdir(self.folder)), ["beyond.bin", "runs"])

    def test_a_disk_too_small_for_the_run_is_known_at_the_start(self):
        process = self.start("--max_steps", "1000000000", "--checkpoint_freq", "1", "--keep_checkpoints", "all")
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step "):
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        warnings = [line for line in lines if line.startswith("warning: ")]
        self.assertEqual(len(warnings), 1, lines)
        self.assertRegex(warnings[0], r"^warning: the disk of checkpoints_fp32/run will be full before the run ends: "
                                      r"\d+ checkpoints of \S+ MB need \S+ TB, and .* short \(free some disk space; --keep_checkpoints N")

    def test_the_time_of_a_step_is_estimated_before_it(self):
        out = self.succeed(*TINY, "--max_steps", "1")
        self.assertRegex(out, r"\n  time +about \S+ a step, \S+ in all: an estimate, from FP32 GEMMs at \d+ GFLOP/s\n  seed ")

    # ---- usage: exit 2 ----

    def test_unknown_flag(self):
        error = self.fail_with(2, "--max_ler", "1")
        self.assertEqual(error, "error: unknown flag --max_ler (did you mean --max_lr?)\n")

    def test_dashes_without_a_name(self):
        for word in ("-", "--", "---", "--=x"):
            self.assertEqual(self.fail_with(2, word), f"error: '{word}' names no flag (see --help)\n")

    def test_conflicts(self):
        self.fail_with(2, "--use_fp8", "--precision", "bf16", says=["--use_fp8", "--precision bf16"])
        self.fail_with(2, "--max_steps", "1", "--num_epochs", "1", says=["--max_steps"])

    def test_bad_numbers(self):
        for flag in ("--batch_size", "--target_batch_size", "--seq_len", "--max_steps", "--layers", "--max_lr"):
            for value in ("0", "-1", "many"):
                self.fail_with(2, flag, value, says=[flag, value])

    def test_config_with_an_unknown_key(self):
        path = self.write("bad.toml", "seed = 3\nlerning_rate = 1\n")
        self.fail_with(2, "--config", path, says=[path + ":2", "lerning_rate"])

    def test_missing_config(self):
        self.fail_with(2, "--config", "nowhere.toml", says=["nowhere.toml"])

    def test_batch_sizes_that_do_not_divide(self):
        self.fail_with(2, *TINY, "--batch_size", "3", says=["--batch_size 2 or 4", "--target_batch_size 3 or 6"])

    def test_unknown_model_and_impossible_shape(self):
        self.fail_with(2, "--device", "cpu", "--model", "gpt2-mediun", says=["gpt2-medium"])
        self.fail_with(2, "--device", "cpu", "--heads", "3", says=["heads"])

    # ---- data: exit 3 ----

    def test_bad_shards(self):
        good = list(range(100))
        cases = {
            "empty.bin": b"",
            "header_only.bin": shard([]),
            "truncated.bin": shard(good, count=200),
            "cut_header.bin": shard(good)[:100],
            "foreign.bin": shard(good, magic=1234),
            "text.txt": "Once upon a time there was a file that was no shard.\n" * 100,
            "truncated.h5": b"\x89HDF\r\n\x1a\n" + bytes(100),
        }
        for name, content in cases.items():
            with self.subTest(name):
                path = self.write(name, content)
                self.fail_with(3, *TINY, "--train_data", path, says=[name])

    def test_missing_shard(self):
        self.fail_with(3, *TINY, "--train_data", "nowhere_*.bin", says=["nowhere_*.bin"])

    def test_bad_validation_shard(self):
        train = self.write("train.bin", shard(list(range(100))))
        empty = self.write("val.bin", b"")
        self.fail_with(3, *TINY, "--train_data", train, "--val_data", empty, says=["val.bin"])

    def test_a_shard_for_training_and_validation(self):
        train = self.write("train_000000.bin", shard(list(range(100))))
        self.write("val_000000.bin", shard(list(range(100, 150))))
        pattern = os.path.join(self.folder, "*.bin")
        for validation in (pattern, os.path.join(self.folder, "train_*.bin")):
            error = self.fail_with(3, *TINY, "--train_data", pattern, "--val_data", validation,
                                   says=["is given for training and for validation", "--val_data"])
            self.assertIn(train, error)
        self.succeed(*TINY, "--max_steps", "1", "--train_data", train, "--val_data",
                     os.path.join(self.folder, "val_*.bin"))

    def test_sequence_longer_than_the_shard(self):
        path = self.write("short.bin", shard([1, 2, 3, 4]))
        self.fail_with(3, *TINY, "--train_data", path, says=["short.bin"])

    def test_token_beyond_the_vocabulary(self):
        path = self.write("beyond.bin", shard([1, 2, 60000, 4] * 20))
        done = self.run_program(*TINY, "--train_data", path)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*60000[^\n]*\n\Z")
        self.assertIn("beyond.bin", done.stderr)

    def test_one_token_beyond_the_vocabulary(self):
        path = self.write("one_bad.bin", shard([1] * 100 + [60000] + [2] * 300))
        out = self.succeed(*TINY, "--train_data", path, "--max_steps", "13")
        self.assertEqual(out.count("one_bad.bin: token 100 is 60000, beyond the vocabulary"), 1)
        self.assertIn("step   13 ", out)

    def test_a_shard_cut_short_while_it_is_read(self):
        path = self.write("cut.bin", shard([1] * 4000))
        process = subprocess.Popen([PROGRAM, *TINY, "--max_steps", "100000", "--train_data", path], cwd=self.folder,
                                   env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        while not process.stdout.readline().startswith("step    3 "):
            pass
        os.truncate(path, 2000)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, error)
        self.assertRegex(error, r"\Aerror: [^\n]*cut.bin[^\n]*\n\Z")
        saved = int(re.search(r"step (\d+) was saved because", out).group(1))
        self.write("cut.bin", shard([1] * 4000))
        self.assertIn(f"at step {saved}\n", self.succeed("--resume", "latest", "--max_steps", str(saved + 1)))

    # ---- checkpoints: exit 4 ----

    def test_nothing_to_resume(self):
        self.fail_with(4, "--resume", "latest", says=["checkpoints_fp32"])
        self.succeed(*TINY, "--max_steps", "1")
        self.fail_with(4, "--resume", "77", says=["77"])
        self.fail_with(4, "--resume", "latest", "--channels", "16", says=["8 channels", "16 channels"])
        self.fail_with(4, "--resume", "latest", "--seed", "5", says=["--seed"])

    def test_damaged_checkpoint(self):
        self.succeed(*TINY, "--max_steps", "1")
        path = os.path.join(self.folder, "checkpoints_fp32/run/step_00000001/state.h5")
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) // 2)
        self.fail_with(4, "--resume", "latest", "--max_steps", "2", says=["step_00000001", "start a new run"])

    def test_latest_goes_back_to_a_valid_checkpoint(self):
        self.succeed(*TINY, "--max_steps", "2", "--checkpoint_freq", "1")
        path = "checkpoints_fp32/run/step_00000002/state.h5"
        with open(os.path.join(self.folder, path), "r+b") as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 1]))
        self.fail_with(4, "--resume", "2", "--max_steps", "3",
                       says=[path + " is damaged: bytes 0 to ", "--resume checkpoints_fp32/run/step_00000001"])
        done = self.run_program("--resume", "latest", "--max_steps", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("resumed checkpoints_fp32/run/step_00000001", done.stdout)
        self.assertIn("note: " + path + " is damaged: bytes 0 to ", done.stdout)
        self.assertIn("note: going back to checkpoints_fp32/run/step_00000001", done.stdout)

    # ---- device, communication, disk: exit 6, 7, 8 ----

    def test_no_gpu(self):
        self.fail_with(6, "--device", "cuda", says=["--device cuda"])

    def test_one_rank_inside_an_allocation(self):
        """The first launcher that is found decides: mpirun -np 1, or torchrun with one process, in a job of eight tasks."""
        slurm = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "8", "SLURM_PROCID": "8"}
        self.fail_with(7, *TINY, **slurm, says=["srun"])
        for one in ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, {"WORLD_SIZE": "1", "RANK": "0"}):
            done = self.run_program(*TINY, "--max_steps", "1", "--run_name", list(one)[0], **slurm, **one)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_rank_beyond_the_last(self):
        self.fail_with(7, *TINY, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="2", says=["mpirun"])

    def test_unwritable_outputs(self):
        self.write("a_file", "not a folder")
        for flag in ("--checkpoint_dir", "--log_dir"):
            done = self.run_program(*TINY, "--max_steps", "1", flag, "a_file/out")
            self.assertEqual(done.returncode, 8, done.stderr)
            self.assertRegex(done.stderr, r"\Aerror: [^\n]*a_file/out[^\n]*\n\Z")
            self.assertNotIn(" | lr: ", done.stdout)  # found out before the first step, not after a thousand
        with open(os.path.join(self.folder, "a_file")) as file:
            self.assertEqual(file.read(), "not a folder")

    def test_second_ctrl_c_ends_at_once(self):
        process = subprocess.Popen(
            [PROGRAM, *TINY, "--max_steps", "100000", "--target_batch_size", "40000", "--batch_size", "40000"],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.strip().startswith("seed"):  # the table's last row: the first micro-batch has begun, and takes long
                break
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        self.assertEqual(process.returncode, 75)

    # ---- numerics: exit 5 ----

    def test_a_run_that_diverges_ends_with_exit_5(self):
        done = self.run_program(*TINY, "--max_steps", "8", "--max_lr", "1e30", "--checkpoint_freq", "2")
        self.assertEqual(done.returncode, 5, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: the run ends at step 8 [^\n]+\n\Z")
        self.assertNotIn(" | saved ", done.stdout)

    # ---- an unfriendly shell ----

    def shell(self, script):
        return subprocess.run(["bash", "-c", script, PROGRAM, *TINY], cwd=self.folder, env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def test_closed_descriptors_never_become_log_files(self):
        self.assertEqual(self.shell('"$0" "$@" --max_steps 3 <&- >&- 2>&-').returncode, 0)
        with open(os.path.join(self.folder, "runs/run/metrics.jsonl")) as lines:
            self.assertEqual([json.loads(line)["type"] for line in lines].count("step"), 3)

    def test_a_closed_pipe_does_not_end_the_run(self):
        self.shell('"$0" "$@" --max_steps 30 | head -n 1')
        self.assertTrue(os.path.isdir(os.path.join(self.folder, "checkpoints_fp32/run/step_00000030")))

    def test_a_file_size_limit_is_a_full_disk(self):
        done = self.shell('ulimit -f 1; exec "$0" "$@" --max_steps 30')
        self.assertEqual(done.returncode, 8, done.stderr)
        self.assertRegex(done.stderr, r"error: cannot write [^\n]+\n\Z")

    def stop_by(self, number):
        process = subprocess.Popen([PROGRAM, *TINY, "--max_steps", "1000000"], cwd=self.folder, env=self.environment,
                                   stdout=subprocess.PIPE, text=True)
        while not process.stdout.readline().startswith("step "):
            pass
        process.send_signal(number)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75)

    def test_a_lost_terminal_saves(self):
        self.stop_by(signal.SIGHUP)

    def test_a_job_managers_warning_saves(self):
        self.stop_by(signal.SIGUSR1)

    def test_little_address_space(self):
        """Down to where the loader itself fails: a line and an exit code, never a hang."""
        if is_sanitized():
            self.skipTest("the sanitizer maps terabytes")
        for kilobytes in (150_000, 250_000, 350_000, 450_000, 600_000, 32_000_000):
            done = self.shell(f'ulimit -v {kilobytes}; OMP_NUM_THREADS=1 timeout --signal KILL 60 "$0" "$@" --max_steps 3 '
                              f'--run_name with{kilobytes}')
            if done.returncode == 127:  # CUDA's libraries alone are larger
                self.assertIn("error while loading shared libraries", done.stderr)
                continue
            self.assertIn(done.returncode, (0, 6), done.stderr)
            if done.returncode == 6:
                self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_few_file_descriptors(self):
        if is_sanitized():
            self.skipTest("the sanitizer opens files of its own")
        self.shell('"$0" "$@" --max_steps 4 --checkpoint_freq 2')
        before = self.files()
        for limit in (5, 6, 7, 8, 10, 24):
            done = self.shell(f'ulimit -n {limit}; exec "$0" "$@" --max_steps 4 --checkpoint_freq 2 --run_name other{limit}')
            if done.returncode != 0:
                self.assertRegex(done.stderr, r"\Aerror: [^\n]*open files[^\n]*\n\Z", limit)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({path: data for path, data in self.files().items() if "/run/" in path},
                         {path: data for path, data in before.items() if "/run/" in path})

    def test_an_empty_config_is_a_config(self):
        self.assertIn("max_steps", self.succeed("--config", self.write("empty.toml", ""), "--print_config"))

    def test_too_many_threads(self):
        self.fail_with(2, *TINY, "--threads", "100000", says=["--threads", "4096"])

    def test_resuming_a_path_goes_on_beside_it(self):
        self.succeed(*TINY, "--max_steps", "2", "--checkpoint_dir", "elsewhere")
        for step, path in ((3, "elsewhere/run/step_00000002"), (4, "elsewhere/run"), (5, "elsewhere/latest")):
            self.succeed("--resume", path, "--max_steps", str(step))
            self.assertTrue(os.path.isdir(os.path.join(self.folder, f"elsewhere/run/step_{step:08d}")))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "checkpoints_fp32")))


if __name__ == "__main__":
    unittest.main(verbosity=1)
