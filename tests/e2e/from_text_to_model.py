#!/usr/bin/env python3
"""The whole way: raw text -> data set -> training, killed and resumed -> scores -> text -> a model that transformers loads.

Usage: from_text_to_model.py TRAINER PREPARE_DATA EVALUATE GENERATE EXPORT_HF [--device cuda]

Every step is the command that a user would type; what one wrote, the next one reads.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu import skip_without_gpu  # noqa: E402

TRAINER, PREPARE, EVALUATE, GENERATE, EXPORT = (os.path.abspath(sys.argv.pop(1)) for _ in range(5))
DEVICE = "cpu"
if "--device" in sys.argv:
    at = sys.argv.index("--device")
    DEVICE = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    if DEVICE == "cuda":
        skip_without_gpu()
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLES = os.environ.get("GPT2_TOKENIZER") or os.path.join(ROOT, ".deps", "gpt2_bpe")
if not os.path.isdir(TABLES):
    print("skipped: no BPE tables")
    sys.exit(77)

ANIMALS, PLACES = ("dog", "cat", "bird", "fox", "hen"), ("the river", "the old mill", "the garden", "the hill")
MORE_STEPS, SAVED_EVERY = 60, 20


def stories(count):
    """Small ones, alike enough to be learnt in a minute."""
    for i in range(count):
        animal, place, day = ANIMALS[i % 5], PLACES[i // 5 % 4], i % 7 + 1
        yield (f"On day {day} the {animal} went to {place}. The {animal} stayed there for {i % 3 + 2} hours. "
               f"Then the {animal} came back from {place} and slept. Story {i} ends here.")


class FromTextToModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="from_text_to_model_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {**os.environ, "GPT2_TOKENIZER": TABLES}
        if DEVICE == "cpu":
            self.environment["CUDA_VISIBLE_DEVICES"] = ""

    def call(self, *command, code=0):
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def training(self):
        return [TRAINER, "--device", DEVICE, "--precision", "bf16" if DEVICE == "cuda" else "fp32", "--dataset", "stories",
                "--layers", "2", "--heads", "2", "--channels", "64", "--seq_len", "64", "--batch_size", "4", "--target_batch_size", "4",
                "--max_steps", "100000", "--max_lr", "6e-3", "--warmup_steps", "10", "--eval_freq", "40", "--checkpoint_freq", str(SAVED_EVERY),
                "--checkpoint_dir", "checkpoints", "--run_name", "tale", "--sample_tokens", "0", "--log_freq", "1"]

    def kill_once_saved(self):
        """Not by a signal that it could answer."""
        with open(self.folder + "/killed.txt", "w") as out:
            process = subprocess.Popen(self.training(), cwd=self.folder, env=self.environment, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            with open(self.folder + "/killed.txt") as out:
                if re.search(r"^step \d+ \| saved", out.read(), re.MULTILINE):
                    break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL)

    def test_the_whole_way(self):
        # ---- text to shards
        with open(self.folder + "/raw.jsonl", "w") as file:
            file.writelines(json.dumps({"text": story}) + "\n" for story in stories(600))
        self.call(PREPARE, "raw.jsonl", "--dataset", "stories", "--val_fraction", "0.05")
        self.assertTrue({"dataset.json", "train_000000.bin", "val_000000.bin"} <= set(os.listdir(self.folder + "/data/stories")))

        # ---- training, killed and resumed
        self.kill_once_saved()
        with open(self.folder + "/checkpoints/tale/latest") as file:
            saved = int(file.read().strip()[len("step_"):])
        self.assertGreaterEqual(saved, SAVED_EVERY)
        steps_in_all = saved + MORE_STEPS
        out = self.call(TRAINER, "--resume", "latest", "--checkpoint_dir", "checkpoints", "--max_steps", str(steps_in_all))
        self.assertEqual(int(re.search(r"^step +(\d+) \| epoch", out, re.MULTILINE).group(1)), saved + 1)
        loss = float(re.findall(r"val loss: ([\d.]+)", out)[-1])
        self.assertLess(loss, 3.0)  # of 10.8 at the start
        with open(self.folder + "/runs/tale/metrics.jsonl") as file:
            steps = [line["step"] for line in map(json.loads, file) if line["type"] == "step"]
        self.assertEqual(steps, list(range(1, steps_in_all + 1)))  # none lost, none twice

        # ---- scores
        with open(self.folder + "/tasks.jsonl", "w") as file:
            for i in range(20):
                animal, place = ANIMALS[i % 5], PLACES[i // 5 % 4]
                endings = ["hours came slept.", "ends for the day.", "back there and.", "story the to."]
                endings[i % 4] = f"{place}. The {animal} stayed there"
                file.write(json.dumps({"ctx": f"On day 3 the {animal} went to", "endings": endings, "label": i % 4}) + "\n")
        scores = json.loads(self.call(EVALUATE, "checkpoints/tale/latest", "--device", DEVICE, "--hellaswag", "tasks.jsonl",
                                      "--val_data", "data/stories/val_*.bin", "--json"))
        self.assertAlmostEqual(scores["val_data"]["loss"], loss, delta=0.02 if DEVICE == "cpu" else 0.05)
        self.assertGreater(scores["hellaswag"]["per_token"], 0.5)  # a quarter by chance

        # ---- text
        prompt = "On day 2 the fox went to the garden."
        text = self.call(GENERATE, "checkpoints/tale/latest", "--device", DEVICE, "--prompt", prompt, "--tokens", "12", "--temperature", "0")
        self.assertTrue(text.startswith(prompt), text)
        self.assertRegex(text, r"\. The \w+ stayed there for")  # a sentence of its own

        # ---- a model for others
        self.call(EXPORT, "checkpoints/tale/latest", "--output", "exported")
        try:
            import torch
            import transformers
        except ImportError:
            print("not loaded by transformers: it is not installed")
            return
        transformers.logging.set_verbosity_error()
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder + "/exported").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder + "/exported")
        inputs = torch.tensor([[50256] + tokenizer.encode(prompt)])  # a document begins after this token
        with torch.no_grad():
            theirs = model.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=12, do_sample=False, pad_token_id=50256)
        if DEVICE == "cpu":
            self.assertEqual(tokenizer.decode(theirs[0][1:]), text.rstrip("\n"))
        again = self.call(TRAINER, "--device", DEVICE, "--init_from", "exported", "--dataset", "stories", "--eval_only", "--seq_len", "64")
        self.assertAlmostEqual(float(re.search(r"val loss: ([\d.]+)", again).group(1)), loss, delta=1e-4 if DEVICE == "cpu" else 0.05)


if __name__ == "__main__":
    unittest.main()
