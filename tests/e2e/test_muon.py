#!/usr/bin/env python3
"""--optimizer muon from outside: rates, metrics, checkpoints, resumes. Usage: test_muon.py TRAIN_GPT2_FP8 CKPT"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TRAIN, CKPT = (os.path.abspath(path) for path in sys.argv[1:3])
del sys.argv[1:3]
TINY = ["--device", "cpu", "--model", "nano", "--layers", "2", "--heads", "2", "--channels", "16", "--seq_len", "16",
        "--batch_size", "2", "--target_batch_size", "4", "--eval_freq", "0", "--sample_tokens", "0", "--threads", "1",
        "--max_steps", "8", "--checkpoint_freq", "4"]
MUON = [*TINY, "--optimizer", "muon"]


class Muon(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="test_muon_")
        self.addCleanup(self.folder.cleanup)

    def run_tool(self, *command, code=0):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(command, cwd=self.folder.name, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def train(self, *arguments):
        return self.run_tool(TRAIN, *arguments)

    def steps(self, run):
        with open(os.path.join(self.folder.name, "runs", run, "metrics.jsonl")) as file:
            return [line for line in map(json.loads, file) if line["type"] == "step"]

    def test_rates_and_norms_of_both_groups(self):
        out = self.train(*MUON, "--run_name", "a", "--max_lr", "0.02", "--adamw_lr", "0.005", "--warmup_steps", "2")
        self.assertIn("Muon, lr 2.00e-02 (AdamW's 5.00e-03)", out)
        for step in self.steps("a"):
            self.assertAlmostEqual(step["adamw_lr"] / step["lr"], 0.25, places=5)
            self.assertGreater(step["update_norm"], 0)
            self.assertGreater(step["adamw_update_norm"], 0)
        # Moonlight's scale: an update of RMS near 0.2 for each of 2 x 12 x 16^2 elements
        last = self.steps("a")[-1]
        self.assertAlmostEqual(last["update_norm"] / last["lr"] / (2 * 12 * 16 ** 2) ** 0.5, 0.2, delta=0.06)
        self.assertIn("max_lr = 0.012", self.train(*MUON, "--print_config").replace('"auto" # ', ""))

    def test_adamw_has_neither(self):
        out = self.train(*TINY, "--run_name", "b", "--adamw_lr", "1e-3")
        self.assertIn("note: --adamw_lr has no effect without --optimizer muon\n", out)
        self.assertNotIn("update_norm", self.steps("b")[0])

    def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(self):
        for precision in ("fp32", "fp8"):
            flags = [*MUON, "--precision", precision, "--muon_momentum_warmup", "6"]
            self.train(*flags, "--run_name", f"whole-{precision}")
            self.train("--resume", f"whole-{precision}/4", "--run_name", f"half-{precision}")
            folder = f"checkpoints_{precision}/{{}}-{precision}/step_00000008"
            out = self.run_tool(CKPT, "diff", folder.format("whole"), folder.format("half"), code=1)
            differences = [line.split(": ")[0] for line in out.splitlines()[2:] if line]
            self.assertEqual(differences, ["train/options_toml", "train/run_name"], out)

    def test_checkpoints_hold_one_moment_of_the_matrices(self):
        self.train(*MUON, "--run_name", "c")
        shown = self.run_tool(CKPT, "show", "checkpoints_fp32/c/step_00000008")
        self.assertIn("muon_m/h.1.mlp.c_fc.weight", shown)
        self.assertIn("adam_v/wte.weight", shown)
        self.assertNotIn("adam_v/h.1.mlp.c_fc.weight", shown)
        self.train(*TINY, "--run_name", "plain")
        try:
            import h5py
        except ImportError:
            return
        for run, version in (("c", 4), ("plain", 3)):  # programs that know no Muon read all other checkpoints
            with h5py.File(os.path.join(self.folder.name, f"checkpoints_fp32/{run}/step_00000008/state.h5")) as file:
                self.assertEqual(int(file.attrs["format_version"]), version)

    def test_a_plan_counts_memory_and_time(self):
        def plan(*flags):
            return json.loads(self.train("--plan", "--json", *flags).splitlines()[-1])

        adamw, muon = (plan(*TINY, "--optimizer", optimizer)["memory_bytes"] for optimizer in ("adamw", "muon"))
        self.assertLess(muon["moments"], adamw["Adam moments"])
        self.assertGreater(muon["Muon's workspace"], 0)
        step = {optimizer: plan("--device", "cuda", "--model", "gpt2", "--use_fp8", "--batch_size", "64",
                                "--target_batch_size", "512", "--optimizer", optimizer)["step_seconds"]
                for optimizer in ("adamw", "muon")}
        if None not in step.values():  # of a GPU that we know, in this machine or assumed
            self.assertAlmostEqual(step["muon"] - step["adamw"], 3.5e-3, delta=1e-3)

    def test_another_optimizer_branches_off_with_fresh_moments(self):
        self.train(*TINY, "--run_name", "d", "--max_lr", "1e-3")
        out = self.train("--resume", "d", "--optimizer", "muon", "--max_steps", "12")
        self.assertIn("note: trained with --optimizer adamw so far, muon from here on: its moments start at zero\n", out)
        self.assertIn("branches off as d-from-8", out)
        self.assertEqual(len(self.steps("d")), 8)
        self.assertEqual(len(self.steps("d-from-8")), 4)
        self.assertIn("lr 1.20e-02 (AdamW's 6.00e-03)", out)  # Muon's own, not the run's


if __name__ == "__main__":
    unittest.main()
