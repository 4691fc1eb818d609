#!/usr/bin/env python3
"""tools/wandb_sync with a stand-in for wandb, and, where it is installed, with the real one offline.

    tests/test_wandb_sync.py TRAINER"""
import collections
import glob
import importlib.util
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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPT = os.path.join(ROOT, "tools", "wandb_sync")
TRAINER = os.path.abspath(sys.argv.pop(1))
TINY = ["--device", "cpu", "--model", "nano", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "8",
        "--threads", "1", "--batch_size", "2", "--target_batch_size", "2", "--eval_sequences", "4", "--no-use_tensorboard", "--precision", "fp8",
        "--fp8_detail", "--histogram_freq", "10", "--eval_freq", "10", "--sample_freq", "20", "--sample_tokens", "4",
        "--checkpoint_freq", "10", "--run_name", "demo"]
LAUNCHERS = ("OMPI_", "PMI_", "SLURM_", "WORLD_SIZE", "RANK")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
ENVIRONMENT.update(CUDA_VISIBLE_DEVICES="", ASAN_OPTIONS="detect_leaks=0")


def records_of(path):
    """A .wandb file is a log of LevelDB's: 7 bytes, then records in pieces (checksum, length, type), none across 32 KiB."""
    with open(path, "rb") as file:
        data = file.read()
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            yield record
            record = b""


def setUpModule():
    """One run of 40 steps for all."""
    global TRAINED
    TRAINED = tempfile.mkdtemp(prefix="test_wandb_")
    unittest.addModuleCleanup(shutil.rmtree, TRAINED)
    subprocess.run([TRAINER, *TINY, "--max_steps", "40"], cwd=TRAINED, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_wandb_")
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("runs", "checkpoints_fp8"):
            shutil.copytree(os.path.join(TRAINED, name), os.path.join(self.folder, name))
        self.metrics = os.path.join(self.folder, "runs", "demo", "metrics.jsonl")
        self.server = os.path.join(self.folder, "server.jsonl")
        self.environment = {**ENVIRONMENT, "PYTHONPATH": os.path.join(ROOT, "tests", "stand_ins"), "PYTHONDONTWRITEBYTECODE": "1",
                            "WANDB_STAND_IN": self.server}
        with open(self.metrics) as file:
            self.lines = file.readlines()

    def sync(self, *arguments, code=0, python=(), **environment):
        done = subprocess.run([*(python or [sys.executable]), SCRIPT, *arguments], cwd=self.folder, capture_output=True, text=True,
                              env={**self.environment, **environment}, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code not in (0, 75):
            self.assertRegex(done.stderr, r"\Aerror: [^\n]+\n\Z")
        return done.stdout + done.stderr

    def rows(self):
        with open(self.server) as file:
            return [json.loads(line) for line in file]

    def cut(self, lines):
        with open(self.metrics, "w") as file:
            file.writelines(lines)

    def expected(self):
        return [line for line in map(json.loads, self.lines) if line["type"] != "fp8_tensor"]

    def assert_each_once(self):
        rows = self.rows()
        self.assertEqual([row["number"] for row in rows], list(range(len(rows))))
        self.assertEqual([row["step"] for row in rows], [line["step"] for line in self.expected()])
        self.assertEqual(len({row["id"] for row in rows}), 1)
        losses = collections.Counter(row["step"] for row in rows if "train/loss" in row)
        self.assertEqual(losses, collections.Counter(range(1, 41)))
        return rows


class Sync(Runs):
    def test_a_run_afterwards(self):
        self.assertIn("in all, up to step 40", self.sync("demo"))
        rows = self.assert_each_once()
        steps = [line for line in self.expected() if line["type"] == "step"]
        first = next(row for row in rows if row["step"] == 1)
        self.assertEqual([first["train/loss"], first["train/lr"], first["tokens"]],
                         [steps[0]["loss"], steps[0]["lr"], steps[0]["tokens"]])
        for name in ("val/loss", "vitals_fp8/fwd_scale", "sample", "events/save", "events/start"):
            self.assertTrue(any(name in row for row in rows), name)
        with open(self.server + ".run") as file:
            run = json.load(file)
        self.assertEqual([run["config"]["channels"], run["config"]["precision"]], [8, "FP8 (emulated)"])
        self.assertEqual(run["summary"]["best_val_loss"],
                         min(line["val_loss"] for line in self.expected() if line["type"] == "validation"))
        self.assertIn(": 0 rows sent", self.sync("demo"))
        self.assertEqual(self.rows(), rows)

    def test_latest_of_a_run_whose_name_is_a_path(self):
        os.makedirs(os.path.join(self.folder, "runs", "sweep_a"))
        os.rename(os.path.dirname(self.metrics), os.path.join(self.folder, "runs", "sweep_a", "demo"))
        self.assertIn("in all, up to step 40", self.sync("latest"))

    def test_in_pieces_and_half_a_line(self):
        for end in (1, 17, 40):
            self.cut([*self.lines[:end], self.lines[end][:20]])
            self.sync("runs/demo")
        self.cut(self.lines)
        self.sync("runs/demo", "--offline")
        self.assert_each_once()

    def test_what_a_kill_left(self):
        """Our file is behind W&B, or before it: W&B knows."""
        state = os.path.join(self.folder, "runs", "demo", "wandb_sync.json")
        self.cut(self.lines[:20])
        self.sync("demo")
        shutil.copy(state, state + ".old")
        self.cut(self.lines[:40])
        self.sync("demo")
        shutil.copy(state + ".old", state)
        self.cut(self.lines)
        self.sync("demo")
        rows = self.assert_each_once()
        with open(self.server, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows[:-15])
        self.sync("demo")
        self.assert_each_once()

    def test_steps_that_a_resume_trains_again_are_sent_once(self):
        self.sync("demo")
        sent = len(self.rows())
        shutil.rmtree(os.path.join(self.folder, "checkpoints_fp8", "demo", "step_00000040"))
        subprocess.run([TRAINER, "--resume", "latest", "--max_steps", "45"], cwd=self.folder, env=ENVIRONMENT, check=True,
                       stdout=subprocess.DEVNULL)
        with open(self.metrics) as file:
            self.assertIn('"event":"resume"', file.read())
        self.assertIn("10 steps were trained again", self.sync("demo"))
        losses = collections.Counter(row["step"] for row in self.rows() if "train/loss" in row)
        self.assertEqual(losses, collections.Counter(range(1, 46)))
        self.assertGreater(len(self.rows()), sent)

    def test_another_run_of_the_same_name_is_another_one(self):
        self.sync("demo")
        self.cut([re.sub(r'"timestamp":"....', '"timestamp":"1999', line) for line in self.lines])
        self.sync("demo")
        self.assertEqual([len(rows) for rows in self.by_id().values()], [len(self.expected())] * 2)

    def by_id(self):
        found = collections.defaultdict(list)
        for row in self.rows():
            found[row["id"]].append(row)
        return found

    def test_while_it_trains(self):
        trainer = subprocess.Popen([TRAINER, *TINY, "--run_name", "live", "--max_steps", "1000000"], cwd=self.folder,
                                   env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(trainer.stdout.close)
        self.addCleanup(trainer.kill)
        while not trainer.stdout.readline().startswith("step "):
            pass
        follower = subprocess.Popen([sys.executable, SCRIPT, "live", "--follow", "0.1"], cwd=self.folder, env=self.environment,
                                    stdout=subprocess.PIPE, text=True)
        self.addCleanup(follower.stdout.close)
        self.addCleanup(follower.kill)
        deadline = time.monotonic() + 60
        while not (os.path.exists(self.server) and len(self.rows()) > 50) and time.monotonic() < deadline:
            time.sleep(0.1)
        trainer.send_signal(signal.SIGTERM)
        while trainer.poll() is None:
            trainer.stdout.read(1 << 16)
        self.assertIn("up to step", follower.communicate(timeout=60)[0])
        self.assertEqual(follower.returncode, 0)
        with open(os.path.join(self.folder, "runs", "live", "metrics.jsonl")) as file:
            last = [json.loads(line) for line in file][-1]["step"]
        steps = [row["step"] for row in self.rows() if "train/loss" in row]
        self.assertEqual(steps, list(range(1, last + 1)))

    def test_bad_input(self):
        self.assertIn("there is no run nosuch", self.sync("nosuch", code=3))
        self.assertIn("nothing in", (self.cut([]), self.sync("demo", code=3))[1])
        self.cut([self.lines[0], "{}\n"])
        self.assertIn("metrics.jsonl:2", self.sync("demo", code=3))
        self.cut([self.lines[0], "[" * 100_000 + "\n"])  # deeper than Python's own stack
        self.assertIn("metrics.jsonl:2", self.sync("demo", code=3))
        self.cut(self.lines)
        self.assertIn("--offline", self.sync("demo", code=2, WANDB_STAND_IN="no key"))
        self.assertIn("network", self.sync("demo", code=7, WANDB_STAND_IN="no network"))
        with open(os.path.join(self.folder, "runs", "demo", "wandb_sync.json"), "w") as file:
            file.write("[]")
        self.assertIn("wandb_sync.json", self.sync("demo", code=3))

    def test_without_wandb(self):
        """A copy outside the tree, whose own environment may have it."""
        os.makedirs(os.path.join(self.folder, "tools"))
        copied = shutil.copy(SCRIPT, os.path.join(self.folder, "tools"))
        done = subprocess.run([sys.executable, "-S", copied, "demo"], cwd=self.folder, capture_output=True, text=True,
                              env={**self.environment, "PYTHONPATH": ""}, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: wandb is not installed \([^\n]+\n\Z")


@unittest.skipUnless(importlib.util.find_spec("wandb"), "no wandb (tools/install_deps.sh extra)")
class RealOffline(Runs):
    """What wandb itself has written."""

    def setUp(self):
        super().setUp()
        self.environment.pop("PYTHONPATH")
        self.environment["WANDB_ERROR_REPORTING"] = "false"

    def rows(self):
        from wandb.proto import wandb_internal_pb2
        rows = []
        for path in sorted(glob.glob(os.path.join(self.folder, "runs/demo/wandb/offline-run-*/*.wandb"))):
            for data in records_of(path):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                if record.HasField("history"):
                    items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                    rows.append({**items, "number": record.history.step.num, "id": os.path.basename(path)[4:-6]})
        return rows

    def test_in_two_pieces(self):
        self.cut(self.lines[:20])
        self.assertIn("wandb sync runs/demo/wandb/offline-run-", self.sync("demo", "--offline"))
        time.sleep(1.1)  # their folders are named by the second
        self.cut(self.lines)
        self.sync("demo", "--offline")
        self.assert_each_once()


if __name__ == "__main__":
    if not importlib.util.find_spec("wandb"):
        print("wandb is not installed (tools/install_deps.sh extra): its offline mode is not tried, a stand-in is")
    unittest.main(verbosity=1)
