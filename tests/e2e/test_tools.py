#!/usr/bin/env python3
"""What all tools share: help, `latest`, messages for common mistakes; and what they do without further arguments.

    tests/e2e/test_tools.py TRAINER TOOL...    (paths of all programs in bin/)
"""
import glob
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAINER, *TOOLS = (os.path.abspath(path) for path in sys.argv[1:])
del sys.argv[1:]
BIN = {os.path.basename(path): path for path in TOOLS}
TABLES = os.environ.get("GPT2_TOKENIZER", os.path.join(ROOT, ".deps", "gpt2_bpe"))
LAUNCHERS = ("OMPI_", "PMI_", "SLURM_", "WORLD_SIZE", "RANK")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS + ("COLUMNS",))}
ENVIRONMENT.update(CUDA_VISIBLE_DEVICES="", ASAN_OPTIONS="detect_leaks=0", OMP_NUM_THREADS="1", GPT2_TOKENIZER=TABLES)
TINY = ["--device", "cpu", "--model", "nano", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "16",
        "--threads", "1", "--batch_size", "2", "--target_batch_size", "4", "--eval_sequences", "8", "--sample_tokens", "0",
        "--no-use_tensorboard"]
RAW = re.compile(r"\b(FLOAT|INT|UINT|BOOLEAN|REQUIRED|POSITIVE|NONNEGATIVE)\b|\bin \[|:\{|Positionals:|Options:|TEXT:| \.\.\.$",
                 re.MULTILINE)


def setUpModule():
    """Two runs, `old` and then `new`, for all cases that only read."""
    global TRAINED
    TRAINED = tempfile.mkdtemp(prefix="test_tools_")
    unittest.addModuleCleanup(shutil.rmtree, TRAINED)
    for name, seed in (("old", "1"), ("new", "2")):
        subprocess.run([TRAINER, *TINY, "--max_steps", "4", "--eval_freq", "2", "--checkpoint_freq", "2", "--run_name", name,
                        "--seed", seed], cwd=TRAINED, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)


class Tools(unittest.TestCase):
    def call(self, code, program, *words, cwd=None, **more):
        done = subprocess.run([BIN.get(program, program), *words], cwd=cwd or TRAINED, env=ENVIRONMENT, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=120, **more)
        self.assertEqual(done.returncode, code, f"{program} {words}\n{done.stdout}{done.stderr}")
        return done.stdout if code == 0 else done.stderr

    def empty_folder(self):
        folder = tempfile.mkdtemp(prefix="test_tools_")
        self.addCleanup(shutil.rmtree, folder)
        return folder

    # ---- help ----

    def check_help(self, program, *command):
        text = self.call(0, program, *command, "--help")
        name = " ".join([program, *command])
        self.assertEqual([line for line in text.splitlines() if len(line) > 80], [], name)
        self.assertNotRegex(text, r"(?m) $", name)
        if program != "plan":  # prints the trainer's
            self.assertIsNone(RAW.search(text), name + "\n" + text)
            self.assertIn(f"Usage: bin/{name}", text)
            self.assertRegex(text, r"\n  -h, --help +print this and exit\n")
        return text

    def test_help_of_every_tool(self):
        self.assertGreaterEqual(len(BIN), 12)
        for program in BIN:
            self.check_help(program)
        for command in ("list", "show", "verify", "diff", "prune"):
            self.check_help("ckpt", command)
        text = self.check_help("generate")
        for words in ("\nModel\n", "\nSampling\n", "--device auto|cuda|cpu", "[auto]", "--top_k N"):
            self.assertIn(words, text)
        self.assertIn("--every SECONDS           time between updates [2]\n", self.check_help("watch"))
        self.assertIn("Usage: bin/export_hf MODEL --output DIR [OPTIONS]\n", self.check_help("export_hf"))

    # ---- latest, and nothing at all ----

    def test_latest_run(self):
        self.assertIn("runs/new/report.html", self.call(0, "report"))
        self.assertIn("runs/new/report.html", self.call(0, "report", "latest"))
        self.assertRegex(self.call(0, "watch", "latest", "--once"), r"\bnew\b")
        self.call(0, "compare", "a=old", "b=latest", "--json", "-o", "compare.html", "--overwrite")
        bare = self.empty_folder()
        for program in ("report", "watch"):
            self.assertRegex(self.call(3, program, cwd=bare), r"\Aerror: no run in runs \(.*\)\n\Z")

    def test_latest_of_a_run_whose_name_is_a_path(self):
        folder = self.empty_folder()
        for name in ("first", "sweep_a/lr_1"):
            subprocess.run([TRAINER, *TINY, "--max_steps", "1", "--run_name", name], cwd=folder, env=ENVIRONMENT, check=True,
                           stdout=subprocess.DEVNULL)
        self.assertIn("runs/sweep_a/lr_1/report.html", self.call(0, "report", "latest", cwd=folder))
        self.assertRegex(self.call(0, "watch", "--once", cwd=folder), r"\blr_1\b")
        self.call(0, "compare", "a=first", "b=latest", "-o", "compare.html", cwd=folder)
        self.assertRegex(self.call(0, "ckpt", "verify", "latest", cwd=folder), r"/sweep_a/lr_1/step_00000001: valid\n\Z")
        self.assertIn("validation set of run sweep_a/lr_1", self.call(0, "evaluate", "latest", "--threads", "1", cwd=folder))

    def test_latest_checkpoint(self):
        newest = "checkpoints_[a-z0-9]+/new/step_00000004"
        self.assertRegex(self.call(0, "ckpt", "show", "latest"), rf"\A{newest}\n")
        self.assertRegex(self.call(0, "ckpt", "verify", "latest"), rf"\A{newest}: valid\n\Z")
        self.assertRegex(self.call(0, "ckpt", "list", "latest", "--quick"), r"\A\w+/new: ")
        self.assertRegex(self.call(0, "ckpt", "prune", "latest", "--keep", "1", "--dry_run"), r"/new/")
        self.assertRegex(self.call(0, "export_hf", "latest", "-o", self.empty_folder() + "/hf"), newest)
        for program, *more in (("generate", "--prompt", "a"), ("evaluate",), ("export_hf", "-o", "hf")):
            error = self.call(4, program, "latest", *more, cwd=self.empty_folder())
            self.assertRegex(error, r"\Aerror: there is no checkpoint in .*\n\Z")

    def test_evaluate_on_the_set_of_its_run(self):
        logged = {}
        with open(TRAINED + "/runs/new/metrics.jsonl") as file:
            for line in map(json.loads, file):
                if line["type"] == "validation":
                    logged[line["step"]] = line["val_loss"]
        self.assertIn(4, logged)
        scores = json.loads(self.call(0, "evaluate", "latest", "--threads", "1", "--json"))["val_data"]
        self.assertEqual(scores["number"], 8)  # --eval_sequences of the run
        self.assertAlmostEqual(scores["loss"], logged[4], places=3)
        self.assertEqual(json.loads(self.call(0, "evaluate", "latest", "--threads", "1", "--json", "--limit", "3"))["val_data"]["number"], 3)
        text = self.call(0, "evaluate", "best", "--threads", "1")
        self.assertRegex(text, r"validation set of run (old|new): 8 sequences of built-in sample\n")

    def test_evaluate_a_dataset(self):
        folder = self.empty_folder()
        with open(folder + "/text.txt", "w") as file:
            file.write("\n\n".join(f"A short document, number {number}, of few words." for number in range(60)))
        if not os.path.isdir(TABLES):
            self.skipTest("no BPE tables")
        self.call(0, "prepare_data", folder + "/text.txt", "--dataset", "short", "--data_dir", folder, "--separator", "",
                  "--val_fraction", "0.5")
        flags = ["latest", "--threads", "1", "--json"]
        by_name = json.loads(self.call(0, "evaluate", *flags, "--dataset", "short", "--data_dir", folder))["val_data"]
        by_glob = json.loads(self.call(0, "evaluate", *flags, "--val_data", folder + "/short/val_*.bin"))["val_data"]
        self.assertEqual((by_name["number"], by_name["loss"]), (by_glob["number"], by_glob["loss"]))
        self.assertIn("there is no dataset nowhere", self.call(3, "evaluate", *flags, "--dataset", "nowhere"))
        self.assertIn("give one of the two", self.call(2, "evaluate", *flags, "--dataset", "short", "--val_data", "x"))
        os.remove(folder + "/short/val_000000.bin")
        self.assertIn("has no validation shards", self.call(3, "evaluate", *flags, "--dataset", "short", "--data_dir", folder))

    # ---- generate on a terminal ----

    def read_until(self, terminal, expected, seconds=60):
        text, end = "", time.monotonic() + seconds
        while expected not in text:
            if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
                self.fail(f"no {expected!r} in {text!r}")
            try:
                text += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # closed by the program
                self.fail(f"ended without {expected!r}: {text!r}")
        return text

    def test_interactive_generate(self):
        if not os.path.isdir(TABLES):
            self.skipTest("no BPE tables")
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        program = subprocess.Popen([BIN["generate"], "latest", "--threads", "1", "--tokens", "4", "--temperature", "0"],
                                   cwd=TRAINED, env={**ENVIRONMENT, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.addCleanup(program.kill)
        self.assertIn("Type a prompt and press Enter; Ctrl-D ends.", self.read_until(ours, "> "))
        os.write(ours, b"Once upon a time\n")
        self.assertGreaterEqual(self.read_until(ours, "\n> ").count("Once upon a time"), 2)  # typed, then continued
        os.write(ours, b" a" * 40 + b"\n")
        self.assertIn("error: prompt 1 has 40 tokens", self.read_until(ours, "\n> "))
        os.write(ours, b"\x04")
        self.assertIn("prefill", self.read_until(ours, "/s)"))
        self.assertEqual(program.wait(60), 0)
        # Without a terminal nothing is asked: a text without a prompt.
        self.assertNotIn("> ", self.call(0, "generate", "latest", "--threads", "1", "--tokens", "4", "--temperature", "0"))

    # ---- plans of what is not here ----

    def plan(self, *flags, cwd=None):
        return json.loads(self.call(0, TRAINER, "--plan", "--json", *flags, cwd=cwd))

    def test_plan_for_another_gpu(self):
        bare = self.empty_folder()
        flags = ["--model", "gpt2", "--max_steps", "100", "--target_batch_size", "512"]
        speeds = {gpu: self.plan("--for", gpu, *flags, cwd=bare) for gpu in ("h200", "H100 SXM", "h100-pcie", "rtx4090", "4060")}
        self.assertEqual([plan["device"] for plan in speeds.values()],
                         ["NVIDIA H200", "NVIDIA H100 SXM", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4060"])
        rates = [plan["tokens_per_second"] for plan in speeds.values()]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertIn("measured on one H200", speeds["h200"]["speed_from"])
        self.assertIn("an estimate", speeds["rtx4090"]["speed_from"])
        self.assertLess(speeds["4060"]["batch_size"], speeds["rtx4090"]["batch_size"])  # 8 GiB
        text = self.call(0, TRAINER, "--plan", "--for", "h100", *flags, cwd=bare)
        for words in ("NVIDIA H100 SXM (--for h100): 132 SMs", "an estimate"):
            self.assertIn(words, " ".join(text.split()))
        error = self.call(2, TRAINER, "--plan", "--for", "h900", cwd=bare)
        self.assertRegex(error, r"\Aerror: --for h900: unknown GPU \(.*known: .*rtx4090.*b200\)\n\Z")
        self.assertRegex(self.call(6, TRAINER, "--plan", "--for", "rtx4060", "--model", "gpt2-xl", cwd=bare), r"\Aerror: .*memory.*\n\Z")
        self.assertIn("--for needs --plan", self.call(2, TRAINER, "--for", "h100", cwd=bare))
        self.assertIn("contradict", self.call(2, TRAINER, "--plan", "--for", "h100", "--device", "cpu", cwd=bare))
        self.assertEqual(os.listdir(bare), [])

    def test_plan_before_the_data_is_there(self):
        bare = self.empty_folder()
        plan = self.plan("--for", "h100", "--model", "gpt2", "--dataset", "fineweb-edu", "--num_epochs", "1", cwd=bare)
        self.assertLess(abs(plan["tokens"] / 9.95e9 - 1), 0.01)
        self.assertRegex(" ".join(plan["notes"]), r"data/fineweb-edu is not there: planned with its known size, 10.0B tokens; make it with "
                                                  r"bin/prepare_data --dataset fineweb-edu")
        self.assertIn("there is no dataset books", self.call(3, TRAINER, "--plan", "--dataset", "books", cwd=bare))

    # ---- dead runs ----

    def test_dead_runs(self):
        folder = self.empty_folder()
        words = [TRAINER, *TINY, "--target_batch_size", "4000", "--max_steps", "4"]
        for name in ("killed", "alive"):
            run = subprocess.Popen([*words, "--run_name", name], cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
            self.addCleanup(run.wait)
            self.addCleanup(run.kill)
            metrics = f"{folder}/runs/{name}/metrics.jsonl"
            while not (os.path.exists(metrics) and os.path.getsize(metrics)):
                self.assertIsNone(run.poll())
                time.sleep(0.01)
            run.send_signal(signal.SIGKILL if name == "killed" else signal.SIGSTOP)
            if name == "killed":
                run.wait()
                with open(metrics) as file:
                    lines = [line for line in file if '"type":"step"' not in line]  # it may have been quick
                with open(metrics, "w") as file:
                    file.writelines(lines)
        for name in ("old", "new"):
            shutil.copytree(f"{TRAINED}/runs/{name}", f"{folder}/runs/{name}")
        shutil.copytree(f"{folder}/runs/killed", f"{folder}/runs/noted")
        with open(folder + "/runs/noted/notes.txt", "w") as file:
            file.write("keep")
        foreign = {"old_version/metrics.jsonl": '{"step":250,"loss":3.5}\n', "torch/events.out.tfevents.1.host": "events of another program"}
        for name, text in foreign.items():
            os.makedirs(os.path.dirname(f"{folder}/runs/{name}"))
            with open(f"{folder}/runs/{name}", "w") as file:
                file.write(text)
        shown = self.call(0, "ckpt", "prune", "--dead_runs", cwd=folder)
        self.assertRegex(shown, r"would remove runs/killed: no step, no checkpoint\nnothing was removed: --yes removes 1 run\n\Z")
        self.assertTrue(os.path.isdir(folder + "/runs/killed"))
        self.assertRegex(self.call(0, "ckpt", "prune", "--dead_runs", "--yes", cwd=folder), r"(?m)^removed runs/killed: no step")
        self.assertEqual(sorted(os.listdir(folder + "/runs")), ["alive", "new", "noted", "old", "old_version", "torch"])
        self.assertEqual(glob.glob(folder + "/checkpoints_*/killed"), [])
        self.assertEqual(self.call(0, "ckpt", "prune", "--dead_runs", "--yes", cwd=folder), "no dead runs in runs\n")
        self.assertIn("takes no RUN", self.call(2, "ckpt", "prune", "old", "--dead_runs", cwd=folder))

    # ---- mistakes ----

    def test_mistakes(self):
        for code, expected, *words in (
                (2, "missing argument MODEL (bin/generate MODEL [INPUT] [OPTIONS]; see --help)", "generate"),
                (2, "missing --output", "export_hf", "latest"),
                (2, "missing argument FILE", "sweep"),
                (2, "missing argument B", "ckpt", "diff", "latest"),
                (2, "missing command: list, runs, show, verify, diff or prune (see --help)", "ckpt"),
                (2, "missing argument RUN (bin/ckpt prune RUN --keep N", "ckpt", "prune"),
                (2, "unexpected argument 'shwo' (did you mean show?)", "ckpt", "shwo", "latest"),
                (2, "unknown flag --tokns (did you mean --tokens?)", "generate", "latest", "--tokns", "4"),
                (2, "--tokens needs a value (see --help)", "generate", "latest", "--tokens"),
                (2, "--tokens: must be from 1 to 16777216, not -4", "generate", "latest", "--tokens", "-4"),
                (2, "--top_k: must be at least 0, not -1", "generate", "latest", "--top_k", "-1"),
                (2, "--tokens: '1.5' is not a whole number", "generate", "latest", "--tokens", "1.5"),
                (2, "--device: must be auto, cuda or cpu, not gpu", "generate", "latest", "--device", "gpu"),
                (2, "--keep: must be above 0, not -1", "ckpt", "prune", "new", "--keep", "-1"),
                (2, "--every: must be from 0.1 to 86400, not -1", "watch", "--every", "-1"),
                (2, "--margin: must be from 1e-09 to 100, not nan", "compare", "--margin", "nan"),
                (2, "--seeds -1: '-1' is not a seed", "compare", "--seeds", "-1"),
                (2, "--limit: must be at least 0, not -1", "evaluate", "latest", "--limit", "-1"),
                (2, "no input given", "prepare_data"),
                (2, "--threads: must be from 1 to 1024, not 0", "prepare_data", "x.txt", "--dataset", "x", "-j", "0"),
                (3, "nowhere.txt", "prepare_data", "nowhere.txt", "--dataset", "x"),
                (3, "there is no run 'nowhere'", "report", "nowhere"),
                (3, "there is no run 'olf', neither as a folder nor below runs (did you mean old?)", "watch", "olf"),
                (3, "there is no run 'nowhere'", "compare", "nowhere", "old"),
                (4, "nowhere", "evaluate", "nowhere"),
                (4, "nowhere", "generate", "nowhere", "--prompt", "a"),
                (4, "nowhere", "export_hf", "nowhere", "-o", "x"),
                (4, "nowhere", "ckpt", "show", "nowhere"),
                (4, "no folder or run nowhere", "ckpt", "list", "nowhere"),
                (2, "nowhere.toml", "sweep", "nowhere.toml"),
                (2, "--svg needs a value (see --help)", "lr_schedule", "--svg"),
                (2, "unknown flag --datta", "doctor", "--datta", "x"),
                (2, "--max_steps: must be", "lr_schedule", "--max_steps", "-1")):
            with self.subTest(words=words):
                error = self.call(code, *words)
                self.assertRegex(error, r"\Aerror: [^\n]+ \([^\n]+\)\n\Z" if "must be" not in expected else r"\Aerror: [^\n]+\n\Z")
                self.assertIn(expected, error)


if __name__ == "__main__":
    unittest.main(verbosity=1)
