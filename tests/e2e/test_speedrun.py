#!/usr/bin/env python3
"""tools/speedrun.sh --small: every stage on the CPU, stopped and continued. Usage: test_speedrun.py TRAIN_GPT2_FP8 TOOLS..."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAIN, *TOOLS = map(os.path.abspath, sys.argv[1:])
del sys.argv[1:]
SCRIPT = os.path.join(ROOT, "tools", "speedrun.sh")


class Speedrun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="test_speedrun_")
        self.addCleanup(self.folder.cleanup)
        os.symlink(TRAIN, self.path("train_gpt2_fp8"))
        os.makedirs(self.path("bin"))
        for tool in TOOLS:
            os.symlink(tool, self.path("bin", os.path.basename(tool)))
        for name in ("configs", "tools", ".deps"):
            os.symlink(os.path.join(ROOT, name), self.path(name))
        self.environment = {**os.environ, "SPEEDRUN_FOLDER": self.folder.name, "CUDA_VISIBLE_DEVICES": "",
                            "OMP_NUM_THREADS": "1", "ASAN_OPTIONS": "detect_leaks=0"}

    def path(self, *parts):
        return os.path.join(self.folder.name, *parts)

    def start(self, *arguments):
        return subprocess.Popen([SCRIPT, *arguments], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def run_script(self, *arguments, code=0):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=800)
        self.assertEqual(process.returncode, code, out + err)
        return out + err

    def test_every_stage_stopped_and_continued(self):
        plan = self.run_script("--small", "--dry_run")
        for words in ("plan of speedrun-small", "3 train     ./train_gpt2_fp8", "5 export    bin/export_hf", "Muon, lr"):
            self.assertIn(words, plan)
        self.assertFalse(os.path.exists(self.path("runs")))

        first = self.start("--small")  # ^C within training, which saves
        while first.poll() is None and not os.path.isdir(self.path("checkpoints_fp32/speedrun-small/step_00000005")):
            time.sleep(0.05)
        with open(f"/proc/{first.pid}/task/{first.pid}/children") as children:  # of the script: the trainer
            os.kill(int(children.read().split()[0]), signal.SIGTERM)
        out, err = first.communicate(timeout=800)
        self.assertEqual(first.returncode, 75, out + err)
        self.assertIn("the same command continues", out)
        self.assertFalse(os.path.exists(self.path("runs/speedrun-small/hellaswag.json")))

        out = self.run_script("--small")
        self.assertIn("resumed ", out)
        for stage in ("train", "evaluate", "export", "report"):
            self.assertIn(f"==> {stage}:", out)
        self.assertRegex(out, r"HellaSwag +\d+\.\d% \(of four tasks")
        self.assertRegex(out, r"validation loss +\d+\.\d+")
        self.assertRegex(out, r"training +\d\.\d\d hours")
        with open(self.path("runs/speedrun-small/metrics.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["step"] for line in lines if line["type"] == "step"], list(range(1, 21)))
        for name in ("hf/config.json", "hf/model.safetensors", "report.html"):
            self.assertTrue(os.path.exists(self.path("runs/speedrun-small", name)), name)

        again = self.run_script("--small")  # nothing but the report is left
        self.assertNotIn("==> train", again)
        self.assertNotIn("==> export", again)

    def test_refusals(self):
        self.assertIn("unknown flag --fast", self.run_script("--fast", code=2))
        self.assertIn("--price: 'much' is not a number", self.run_script("--price", "much", code=2))
        self.environment["PATH"] = "/usr/bin:/bin"
        if not os.path.exists("/usr/bin/nvidia-smi"):
            self.assertIn("there is no GPU here (hint: --small", self.run_script(code=6))
            self.assertIn("bin/prepare_data --dataset fineweb-edu", self.run_script("--dry_run"))


if __name__ == "__main__":
    unittest.main()
