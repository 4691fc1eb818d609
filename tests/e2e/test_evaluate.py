#!/usr/bin/env python3
"""Scores on tasks, held against transformers. Usage: test_evaluate.py TRAINER EXPORT_HF EVALUATE

A small model is trained here and exported; transformers says what every ending of every task costs. HellaSwag's own tasks
where they are on this machine ($GPT2_SHARED, ../shared), else some of the same form.
"""
import json
import lzma
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from hugging_face import ROOT, TABLES, torch, transformers

TRAINER, EXPORT, EVALUATE = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
SHARED = os.path.join(os.environ.get("GPT2_SHARED") or os.path.join(os.path.dirname(ROOT), "shared"), "data/text/hellaswag_val.jsonl.xz")
if not os.path.isdir(TABLES):
    print("skipped: no BPE tables")
    sys.exit(77)
NEAR = 1e-3  # nats: which of two endings closer than this is the likelier one, rounding may say


def made_up_tasks(count):
    who, where, what = ("The boy", "A woman", "The old dog"), ("in the garden", "by the river", "on the roof"), ("sits", "runs", "sings")
    return [{"ind": i, "ctx": f"{who[i % 3]} {what[i // 3 % 3]} {where[i // 9 % 3]}. {who[(i + 1) % 3]}",
             "endings": [f"{what[k % 3]} {where[(i + k) % 3]} with {k + 2} birds{' and a small red boat' * (k % 2)}." for k in range(4)],
             "label": str(i % 4) if i % 2 else i % 4} for i in range(count)]


def hellaswag_tasks(count):
    if not os.path.exists(SHARED):
        return made_up_tasks(count)
    with lzma.open(SHARED, "rt") as file:
        return [json.loads(line) for line, _ in zip(file, range(count))]


class Evaluate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="test_evaluate_")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "GPT2_TOKENIZER": TABLES}
        cls.tasks = hellaswag_tasks(200)
        cls.write("tasks.jsonl", cls.tasks)
        cls.trained = cls.train("--run_name", "small", "--hellaswag_freq", "20", "--hellaswag_tasks", "40")
        cls.call(0, EXPORT, "checkpoints_fp32/small", "--output", "hf")
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(cls.folder + "/hf").eval()
        cls.tokenizer = transformers.AutoTokenizer.from_pretrained(cls.folder + "/hf")

    @classmethod
    def train(cls, *more):
        return cls.call(0, TRAINER, "--device", "cpu", "--layers", "2", "--heads", "2", "--channels", "48", "--seq_len", "64",
                        "--max_steps", "30", "--batch_size", "2", "--target_batch_size", "4", "--max_lr", "5e-3", "--warmup_steps", "3",
                        "--eval_freq", "0", "--sample_tokens", "0", "--no-use_tensorboard", "--hellaswag_data", "tasks.jsonl", *more)

    @classmethod
    def call(cls, code, *command):
        done = subprocess.run(command, cwd=cls.folder, env=cls.environment, capture_output=True, text=True, timeout=300)
        if done.returncode != code:
            raise AssertionError(f"exit code {done.returncode}, not {code}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout if code == 0 else done.stderr

    @classmethod
    def write(cls, name, lines):
        with open(f"{cls.folder}/{name}", "w") as file:
            file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)

    def evaluate(self, *more):
        result = json.loads(self.call(0, EVALUATE, "checkpoints_fp32/small", "--json", "--details", "details.jsonl", *more))
        with open(self.folder + "/details.jsonl") as file:
            return result, [json.loads(line) for line in file]

    def losses(self, pairs):
        """As transformers has it: nats of the second text of each pair, and whether it would be written greedily."""
        rows = [(self.tokenizer.encode(context), self.tokenizer.encode(" " + ending)) for context, ending in pairs]
        tokens = torch.full((len(rows), min(65, max(len(before) + len(after) for before, after in rows))), -100)
        for row, (before, after) in zip(tokens, rows):
            kept = (before + after)[-65:]
            row[:len(kept)] = torch.tensor(kept)
        with torch.no_grad():  # what follows a row cannot be seen from it
            logits = self.model(tokens[:, :-1].clamp(min=0)).logits
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").double()
        losses = losses.view(len(rows), -1)
        greedy = logits.argmax(-1) == tokens[:, 1:]
        ends = [min(64, len(before) + len(after) - 1) for before, after in rows]
        parts = [(row, slice(end - len(after), end)) for row, (end, (_, after)) in enumerate(zip(ends, rows))]
        return [losses[part].sum().item() for part in parts], [bool(greedy[part].all()) for part in parts]

    def check_choices(self, name, result, details, expected, lengths, rights):
        """Losses as transformers has them; choices too, but where two endings are as good as equal."""
        self.assertEqual(len(details), len(expected))
        near = {"accuracy": 0, "per_token": 0, "per_byte": 0}
        theirs = dict(near)
        for ours, losses, (tokens, sizes), right in zip(details, expected, lengths, rights):
            self.assertEqual(ours["right"], right)
            for a, b in zip(ours["losses"], losses):
                self.assertAlmostEqual(a, b, delta=1e-3 * max(1, abs(b) / 10))
            for key, by in (("accuracy", [1] * len(losses)), ("per_token", tokens), ("per_byte", sizes)):
                scaled = [loss / size for loss, size in zip(losses, by)]
                low = sorted(scaled)
                near[key] += low[1] - low[0] < NEAR
                theirs[key] += scaled.index(low[0]) == right
                if key == "accuracy" and low[1] - low[0] >= NEAR:
                    self.assertEqual(ours["chosen"], scaled.index(low[0]))
        for key in near:
            self.assertLessEqual(abs(result[name][key] * len(details) - theirs[key]), near[key] + 1e-6, key)
        self.assertLess(near["accuracy"], len(details) // 10 + 2)

    def test_hellaswag_chooses_what_transformers_chooses(self):
        result, details = self.evaluate("--hellaswag", "tasks.jsonl")
        self.assertEqual(result["hellaswag"]["number"], 200)
        expected = [self.losses([(task["ctx"], ending) for ending in task["endings"]])[0] for task in self.tasks]
        lengths = [([len(self.tokenizer.encode(" " + ending)) for ending in task["endings"]],
                    [len(ending.encode()) for ending in task["endings"]]) for task in self.tasks]
        self.check_choices("hellaswag", result, details, expected, lengths, [int(task["label"]) for task in self.tasks])
        _, of_other_batches = self.evaluate("--hellaswag", "tasks.jsonl", "--batch_size", "3", "--limit", "10")
        for a, b in zip(details[:10], of_other_batches):
            for x, y in zip(a["losses"], b["losses"]):
                self.assertAlmostEqual(x, y, delta=1e-4)

    def test_during_training_alone_and_on_ranks(self):
        lines = re.findall(r"^step (\d+) \| HellaSwag: ([\d.]+) per token \| ([\d.]+) per byte \| ([\d.]+) summed \| 40 tasks$",
                           self.trained, re.MULTILINE)
        self.assertEqual([int(line[0]) for line in lines], [20, 30])
        result, _ = self.evaluate("--hellaswag", "tasks.jsonl", "--limit", "40")
        with open(self.folder + "/runs/small/metrics.jsonl") as file:
            logged = [entry for entry in map(json.loads, file) if entry["type"] == "hellaswag"]
        self.assertEqual([entry["step"] for entry in logged], [20, 30])
        for key in ("accuracy", "per_token", "per_byte"):
            self.assertAlmostEqual(logged[-1][key], result["hellaswag"][key], delta=1e-9)
        both = self.train("--run_name", "two", "--hellaswag_freq", "20", "--hellaswag_tasks", "40", "--gpus", "2", "--max_lr", "1e-5")
        one = self.train("--run_name", "one", "--hellaswag_freq", "20", "--hellaswag_tasks", "40", "--max_lr", "1e-5")
        scores = [re.findall(r"^step \d+ \| HellaSwag.*$", out, re.MULTILINE) for out in (both, one)]
        self.assertEqual(len(scores[0]), 2)
        self.assertEqual(scores[0], scores[1])

    def test_the_other_tasks(self):
        arc = [{"id": "a", "question": {"stem": "Which one flies?", "choices": [{"text": "a bird", "label": "A"}, {"text": "the river", "label": "B"},
                                                                              {"text": "a small boat", "label": "C"}]}, "answerKey": "A"},
               {"id": "b", "question": "Where do fish live?", "choices": {"text": ["in the river", "on the roof"], "label": ["1", "2"]}, "answerKey": "2"}]
        piqa = [{"goal": "Sit on a chair.", "sol1": "Walk to it and sit.", "sol2": "Sing to it until it runs away.", "label": 0},
                {"goal": "Open a door.", "sol1": "Eat the door.", "sol2": "Turn the handle.", "label": 1}]
        winogrande = [{"sentence": "The dog ran after the boy because _ was hungry.", "option1": "the dog", "option2": "the boy", "answer": "1"},
                      {"sentence": "Ann gave Sue the book since _ had asked for it.", "option1": "Ann", "option2": "Sue", "answer": "2"}]
        lambada = [{"text": "The boy went to the river and sat by the river"}, {"text": "One day, a dog and a cat saw a dog and a zebra"}]
        self.write("arc.jsonl", arc), self.write("piqa.jsonl", piqa), self.write("winogrande.jsonl", winogrande), self.write("lambada.jsonl", lambada)
        result, details = self.evaluate(*(word for name in ("arc", "piqa", "winogrande", "lambada") for word in (f"--{name}", f"{name}.jsonl")))

        def question(text, *endings):
            return [(f"Question: {text}\nAnswer:", ending) for ending in endings]
        candidates = {"arc": [question("Which one flies?", "a bird", "the river", "a small boat"),
                              question("Where do fish live?", "in the river", "on the roof")],
                      "piqa": [question(line["goal"], line["sol1"], line["sol2"]) for line in piqa],
                      "winogrande": [[("The dog ran after the boy because the dog", "was hungry."),
                                      ("The dog ran after the boy because the boy", "was hungry.")],
                                     [("Ann gave Sue the book since Ann", "had asked for it."), ("Ann gave Sue the book since Sue", "had asked for it.")]]}
        rights = {"arc": [0, 1], "piqa": [0, 1], "winogrande": [0, 1]}
        for name, of_task in candidates.items():
            expected = [self.losses(pairs)[0] for pairs in of_task]
            lengths = [([len(self.tokenizer.encode(" " + ending)) for _, ending in pairs], [len(ending) for _, ending in pairs]) for pairs in of_task]
            self.check_choices(name, result, [line for line in details if line["task"] == name], expected, lengths, rights[name])
        losses, greedy = self.losses([line["text"].rsplit(" ", 1) for line in lambada])
        self.assertAlmostEqual(math.log(result["lambada"]["perplexity"]), sum(losses) / 2, delta=1e-3)
        self.assertEqual(result["lambada"]["accuracy"], sum(greedy) / 2)
        labels = [line.pop("label") for line in piqa]
        self.write("valid.jsonl", piqa), self.write("valid-labels.lst", map(str, labels))
        self.assertEqual(self.evaluate("--piqa", "valid.jsonl")[0]["piqa"]["accuracy"], result["piqa"]["accuracy"])

    def test_shards(self):
        with open(self.folder + "/val.bin", "wb") as file:  # llm.c's: 256 int32, then tokens
            tokens = [token for task in self.tasks for token in self.tokenizer.encode(task["ctx"])][:64 * 5 + 1]
            file.write(b"".join(value.to_bytes(4, "little") for value in (20240520, 1, len(tokens))) + bytes(1012))
            file.write(b"".join(token.to_bytes(2, "little") for token in tokens))
        result, _ = self.evaluate("--val_data", "val.bin")
        rows = torch.tensor(tokens[:-1]).view(5, 64)
        with torch.no_grad():
            logits = self.model(rows).logits
        loss = torch.nn.functional.cross_entropy(logits.view(320, -1), torch.tensor(tokens[1:])).item()
        self.assertEqual((result["val_data"]["number"], result["val_data"]["tokens"]), (5, 320))
        self.assertAlmostEqual(result["val_data"]["loss"], loss, delta=1e-4)
        self.assertAlmostEqual(result["val_data"]["perplexity"], math.exp(result["val_data"]["loss"]), delta=1e-6)

    def test_what_is_wrong(self):
        def refused(code, *more):
            error = self.call(code, EVALUATE, "checkpoints_fp32/small", *more)
            self.assertRegex(error, r"\Aerror: .*\n\Z")
            return error
        self.assertIn("nothing to evaluate", self.call(2, EVALUATE, "hf"))
        self.assertIn("nowhere.jsonl", refused(3, "--hellaswag", "nowhere.jsonl"))
        for line, what in (("{", "not a JSON object"), ({"ctx": "a", "label": 0}, '"endings"'), ({"ctx": "a", "endings": ["b"], "label": 1}, "its label is 1, and it has 1 ending"),
                           ({"ctx": "", "endings": ["b"], "label": 0}, "empty"), ({"ctx": "a", "endings": [1], "label": 0}, "not a text"),
                           ({"ctx": "a", "endings": ["word " * 80], "label": 0}, "more than the model's 64 positions")):
            self.write("bad.jsonl", [self.tasks[0], line])
            self.assertIn(what, refused(3, "--hellaswag", "bad.jsonl"))
        self.write("empty.jsonl", [])
        self.assertIn("no tasks", refused(3, "--hellaswag", "empty.jsonl"))
        self.assertIn("--details", self.call(0, EVALUATE, "--help"))
        self.assertRegex(refused(8, "--hellaswag", "tasks.jsonl", "--details", "none/x.jsonl"), "none/x.jsonl")
        with open(self.folder + "/tasks.jsonl") as file:
            before = file.read()
        self.assertIn("--overwrite", refused(2, "--hellaswag", "tasks.jsonl", "--details", "tasks.jsonl"))
        with open(self.folder + "/tasks.jsonl") as file:
            self.assertEqual(file.read(), before)
        self.write("notes.txt", [{"mine": 1}])
        for more in (["--overwrite"], []):  # then it is our own
            self.call(0, EVALUATE, "checkpoints_fp32/small", "--hellaswag", "tasks.jsonl", "--limit", "2", "--details", "notes.txt", *more)
        self.assertIn("nosuch", self.call(4, EVALUATE, "nosuch", "--hellaswag", "tasks.jsonl"))
        self.assertIn("none.jsonl", self.call(3, TRAINER, "--device", "cpu", "--hellaswag_freq", "5", "--hellaswag_data", "none.jsonl"))


if __name__ == "__main__":
    unittest.main()
