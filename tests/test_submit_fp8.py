#!/usr/bin/env python3
"""tools/submit_fp8.sh with the real program and without Slurm: srun starts one rank, scontrol does nothing. The real
Slurm is in e2e/test_slurm.py. Usage: test_submit_fp8.py PROGRAM"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINY = """device = "cpu"
model = "nano"
layers = 1
heads = 1
channels = 8
seq_len = 8
batch_size = 2
target_batch_size = 4
threads = 1
eval_freq = 0
sample_tokens = 0
use_tensorboard = false
"""
SRUN = '#!/bin/sh\nwhile case $1 in --*) ;; *) false ;; esac; do shift; done\nunset SLURM_JOB_ID SLURM_NTASKS\nexec "$@"\n'


class Submit(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_submit_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.write("srun", SRUN, 0o755)
        self.write("scontrol", "#!/bin/sh\n", 0o755)
        os.symlink(PROGRAM, os.path.join(self.folder, "train_gpt2_fp8"))
        known = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "GPT2_"))}
        self.environment = {**known, "PATH": self.folder + ":" + os.environ["PATH"], "SLURM_SUBMIT_DIR": self.folder,
                            "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "here", "CUDA_VISIBLE_DEVICES": "",
                            "ASAN_OPTIONS": "detect_leaks=0"}

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)
        return name

    def turn(self, job, code=0, stop_after=None, **environment):
        """What a turn of a job prints; it meets its time limit after the first line with `stop_after`."""
        turn = subprocess.Popen([os.path.join(ROOT, "tools/submit_fp8.sh")], cwd=self.folder, text=True,
                                env={**self.environment, "SLURM_JOB_ID": str(job), **environment},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(turn.stdout.close)
        self.addCleanup(turn.kill)
        out = ""
        for line in turn.stdout:
            out += line
            if stop_after and stop_after in line:
                turn.send_signal(signal.SIGUSR1)
                stop_after = None
        self.assertEqual(turn.wait(timeout=60), code, out)
        return out

    def runs(self, folder):
        return sorted(os.listdir(os.path.join(self.folder, folder)))

    def test_later_turns_resume_the_branch(self):
        config = self.write("tiny.toml", TINY + "max_steps = 2\n")
        for checkpoints, (origin, branched) in (("", ("checkpoints_fp32", "checkpoints_fp8")), ("mine", ("mine", "mine"))):
            with self.subTest(checkpoints=checkpoints):
                where = {"CHECKPOINTS": checkpoints, "RUN": "r" + checkpoints}
                run = where["RUN"]
                self.turn(1, CONFIG=config, ARGS="--precision fp32", **where)
                again = {"ARGS": "--use_fp8 --fp8_bf16_steps 0 --max_steps 1000000", **where}
                first = self.turn(2, code=75, stop_after=" | loss: ", **again)
                stopped = int(re.search(r"the time limit came at step (\d+): back into the queue", first)[1])
                self.assertGreater(stopped, 2)
                second = self.turn(2, **{**again, "ARGS": f"--use_fp8 --max_steps {stopped + 2}"})
                self.assertIn(f"run {run}-fp8-from-2, turn 1, 1 ranks on here, from step {stopped}\n", second)
                branches = [name for name in self.runs(branched) if name.startswith(run + "-")]
                self.assertEqual(branches, [run + "-fp8-from-2"])
                self.assertIn(f"run {run}, turn 1, 1 ranks on here, from step 2\n", self.turn(3, **where))  # another job
                left = [name for name in self.runs(f"{origin}/{run}") if name.startswith(".slurm")]
                self.assertEqual(left, [])

    def test_without_slurm(self):
        self.environment.pop("SLURM_JOB_ID", None)
        script = os.path.join(ROOT, "tools/submit_fp8.sh")
        done = subprocess.run([script], env=self.environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (2, f"error: run this with sbatch: sbatch {script}\n"))

    def test_a_config_chooses_precision_and_folder(self):
        lines = ['precision = "fp32"', '\tprecision = "fp32"', "use_fp8 = false", "fp8 = false"]
        for job, line in enumerate(lines, 1):
            with self.subTest(line=line):
                config = self.write("tiny.toml", TINY + "max_steps = 1\n" + line + "\n")
                self.assertRegex(self.turn(job, CONFIG=config), r"(?m)^step +1 .* FP32$")
        self.assertIn("FP8", self.turn(20, CONFIG=self.write("tiny.toml", TINY + "max_steps = 1\n")))
        # The CPU has no BF16: the program shows where it would write.
        self.write("show", "#!/bin/sh\necho \"flags: $*\"\n", 0o755)
        self.assertNotIn("--checkpoint_dir", self.turn(21, PROGRAM="./show", ARGS="--precision bf16"))
        self.assertIn("--checkpoint_dir mine", self.turn(22, PROGRAM="./show", CHECKPOINTS="mine"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
