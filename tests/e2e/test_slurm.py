#!/usr/bin/env python3
"""tools/submit_fp8.sh and srun under a real slurmctld and slurmd on this machine. Usage: test_slurm.py TRAINER SWEEP SPAWN_RANKS"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import slurm_cluster

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = ["--device", "cpu", "--model", "nano", "--layers", "2", "--heads", "2", "--channels", "64", "--seq_len", "64",
         "--target_batch_size", "8", "--batch_size", "4", "--threads", "1", "--eval_sequences", "8", "--sample_tokens", "4"]
TINY = ["--device", "cpu", "--model", "nano", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "8",
        "--batch_size", "2", "--target_batch_size", "4", "--threads", "1", "--eval_sequences", "4", "--sample_tokens", "4"]
# A time limit of a minute is the shortest. slurmctld looks every 30 s, so a warning 20 s before the limit comes after 10
# to 40 s of training; a run of 70 s meets at least one.
TIME = ["--time=1", "--signal=B:USR1@20"]
SECONDS_OF_TRAINING = 70
ONE_RANK = ["--ntasks-per-node=1", "--cpus-per-task=1", "--gpus-per-node=1"]


class Slurm(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=CLUSTER.folder)  # and goes with it
        for name in ("configs", "tools"):
            shutil.copytree(os.path.join(ROOT, name), os.path.join(self.folder, name))
        os.makedirs(os.path.join(self.folder, "logs"))
        os.symlink(TRAINER, os.path.join(self.folder, "train_gpt2_fp8"))
        self.environment = {**CLUSTER.environment, "CUDA_VISIBLE_DEVICES": "", "ASAN_OPTIONS": "detect_leaks=0"}

    def train(self, *arguments, **options):
        return subprocess.Popen(["./train_gpt2_fp8", *arguments], cwd=self.folder, env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **options)

    def steps(self, run):
        """{step: its line of metrics.jsonl}"""
        with open(os.path.join(self.folder, "runs", run, "metrics.jsonl")) as lines:
            return {line["step"]: line for line in map(json.loads, lines) if line["type"] == "step"}

    def submit(self, *flags, arguments, **environment):
        """The number of the job."""
        words = {"CONFIG": "configs/nano.toml", **({} if arguments is None else {"ARGS": " ".join(arguments)}), **environment}
        done = subprocess.run(["sbatch", "--parsable", *ONE_RANK, *flags, "tools/submit_fp8.sh"], cwd=self.folder,
                              env={**self.environment, **words}, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout)

    def log(self, job):
        """Without the lines of steps."""
        with open(os.path.join(self.folder, f"logs/train_gpt2_fp8-{job}.log")) as lines:
            return "".join(line for line in lines if " | lr: " not in line)

    def end_of(self, job, seconds=400):
        """(state, exit code) of a job that is over."""
        def over():
            return CLUSTER.job(job)["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
        CLUSTER.wait_for(over, f"the end of job {job}", seconds)
        status = CLUSTER.job(job)
        return status["JobState"], int(status["ExitCode"].split(":")[0])

    def test_a_time_limit_changes_nothing(self):
        self.assertEqual(self.train(*SMALL, "--max_steps", "20", "--run_name", "pace").wait(), 0)
        pace = min(line["dt_ms"] for line in self.steps("pace").values()) / 1000  # of a machine that is not busy
        arguments = [*SMALL, "--max_steps", str(int(SECONDS_OF_TRAINING / pace))]

        job = self.submit(*TIME, arguments=arguments)
        whole = self.train("--config", "configs/nano.toml", *arguments, "--run_name", "whole")
        self.addCleanup(whole.wait)
        self.addCleanup(whole.kill)
        self.assertEqual(self.end_of(job), ("COMPLETED", 0), self.log(job))
        self.assertEqual(whole.wait(), 0)

        log = self.log(job)
        stops = [int(step) for step in re.findall(r"the time limit came at step (\d+): back into the queue", log)]
        starts = [int(step) for step in re.findall(r"turn \d+, 1 ranks on \S+ from step (\d+)", log)]
        self.assertGreater(len(stops), 0, log)
        self.assertEqual(starts, stops)
        self.assertIn("turn 1, 1 ranks on localhost, from the start", log)
        self.assertEqual(int(CLUSTER.job(job)["Restarts"]), len(stops))
        interrupted, uninterrupted = self.steps(f"slurm-{job}"), self.steps("whole")
        self.assertEqual({step: line["loss"] for step, line in interrupted.items()},
                         {step: line["loss"] for step, line in uninterrupted.items()})

    def test_a_config_says_the_precision(self):
        tiny = [f"{name[2:]} = {value if value.isdigit() else json.dumps(value)}" for name, value in zip(TINY[::2], TINY[1::2])]
        for more, precision in ((['precision = "fp32"'], "FP32"), ([], "FP8 (emulated)")):
            with open(os.path.join(self.folder, "tiny.toml"), "w") as file:
                file.write("\n".join([*tiny, "max_steps = 2", "fp8_bf16_steps = 0", *more, ""]))
            job = self.submit(arguments=None, CONFIG="tiny.toml")
            self.assertEqual(self.end_of(job), ("COMPLETED", 0), self.log(job))
            self.assertEqual({line["precision"] for line in self.steps(f"slurm-{job}").values()}, {precision})

    def test_without_progress_it_is_not_requeued(self):
        # A limit that comes before the first step, by a program that says it stopped and saved nothing.
        stand_in = os.path.join(self.folder, "stand_in")
        with open(stand_in, "w") as file:
            file.write("#!/bin/sh\ntrap 'exit 75' USR1\necho token: $GPT2_JOB_TOKEN\ntouch started\nwhile :; do sleep 0.1; done\n")
        os.chmod(stand_in, 0o755)
        job = self.submit(arguments=[], PROGRAM="./stand_in")
        CLUSTER.wait_for(lambda: os.path.exists(os.path.join(self.folder, "started")), "the start of the job")
        CLUSTER.run("scancel", "--batch", "--signal=USR1", str(job))
        self.assertEqual(self.end_of(job), ("FAILED", 75), self.log(job))
        self.assertIn("the time limit came before a step was done", self.log(job))
        self.assertRegex(self.log(job), r"(?m)^token: [0-9a-f]{64}$")  # for the ranks of the job alone
        self.assertEqual(CLUSTER.job(job)["Restarts"], "0")

    def test_stopped_by_hand_it_saves_and_another_job_goes_on(self):
        job = self.submit(arguments=[*TINY, "--max_steps", "1000000"])
        CLUSTER.wait_for(lambda: os.path.exists(os.path.join(self.folder, "runs", f"slurm-{job}", "metrics.jsonl")) and
                         self.steps(f"slurm-{job}"), "the first step")
        CLUSTER.run("scancel", "--signal=TERM", str(job))
        self.assertEqual(self.end_of(job), ("FAILED", 75), self.log(job))
        stopped = max(self.steps(f"slurm-{job}"))
        self.assertTrue(os.path.isdir(f"{self.folder}/checkpoints_fp32/slurm-{job}/step_{stopped:08}"))

        further = self.submit(arguments=["--max_steps", str(stopped + 2)], RUN=f"slurm-{job}", CONFIG="")
        self.assertEqual(self.end_of(further), ("COMPLETED", 0), self.log(further))
        self.assertIn(f"from step {stopped}\n", self.log(further))
        self.assertEqual(max(self.steps(f"slurm-{job}")), stopped + 2)

    def test_a_sweep_as_an_array(self):
        options = zip(TINY[::2], TINY[1::2])
        text = [f"{name[2:]} = {value if value.isdigit() else repr(value)}" for name, value in options]
        with open(os.path.join(self.folder, "seeds.toml"), "w") as file:
            file.write("\n".join([*text, "max_steps = 5", "[grid]", "seed = [1, 2]", ""]))
        sweep = [SWEEP, "seeds.toml", "--dir", "my runs, 100%"]
        done = subprocess.run([*sweep, "--submit", "--sbatch", "--cpus-per-task=1 --time=5 --comment='two words'"], cwd=self.folder,
                              env=self.environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        job = re.match(r"job (\d+), 2 tasks", done.stdout)[1]
        for task in (1, 2):
            with self.subTest(task=task):
                self.assertEqual(self.end_of(f"{job}_{task}"), ("COMPLETED", 0))
                with open(os.path.join(self.folder, f"my runs, 100%/seed_{task}/metrics.jsonl")) as lines:
                    self.assertEqual(max(json.loads(line)["step"] for line in lines), 5)
                self.assertTrue(os.path.isfile(os.path.join(self.folder, f"my runs, 100%/slurm-{job}_{task}.log")))
        done = subprocess.run(sweep, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stdout.count("done, 5 steps"), 2, done.stdout + done.stderr)

    def test_errors_are_the_jobs(self):
        job = self.submit(arguments=["--max_ler", "1"])
        self.assertEqual(self.end_of(job), ("FAILED", 2), self.log(job))
        self.assertIn("did you mean --max_lr?", self.log(job))
        job = self.submit(arguments=[], CONFIG="configs/nothing.toml")
        self.assertEqual(self.end_of(job), ("FAILED", 2), self.log(job))
        self.assertIn("configs/nothing.toml", self.log(job))

    def test_ranks_by_srun_meet_within_a_second(self):
        times = []
        while len(times) < 3 and not (times and times[-1] < 1):  # a busy machine gets three tries
            done = CLUSTER.run("srun", "--ntasks=3", SPAWN_RANKS, "group", cwd=self.folder)
            found = re.findall(r", 3 together, began ([\d.]+) met ([\d.]+)", done.stdout)
            self.assertEqual(len(found), 3, done.stdout + done.stderr)
            times.append(max(float(met) for _, met in found) - max(float(began) for began, _ in found))
        self.assertLess(times[-1], 1, times)

    def test_two_ranks_by_srun(self):
        flags = [*SMALL, "--max_steps", "20"]
        done = CLUSTER.run("srun", "--ntasks=2", "./train_gpt2_fp8", *flags, "--run_name", "two",
                           cwd=self.folder, timeout=300)
        if "this build trains in one process" in done.stderr:
            self.skipTest("this build trains in one process")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.train(*flags, "--run_name", "one").wait(), 0)
        one, two = self.steps("one"), self.steps("two")
        self.assertEqual(list(one), list(two))
        for step, line in one.items():
            self.assertAlmostEqual(line["loss"], two[step]["loss"], delta=1e-4, msg=f"step {step}")


if __name__ == "__main__":
    TRAINER, SWEEP, SPAWN_RANKS = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
    if reason := slurm_cluster.missing():
        print(f"skipped: {reason}")
        sys.exit(77)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the `finally` is reached
    CLUSTER = slurm_cluster.Cluster()
    try:
        CLUSTER.start()
        result = unittest.main(verbosity=2, exit=False).result
    finally:
        CLUSTER.stop()
    sys.exit(not result.wasSuccessful())
