#!/usr/bin/env python3
"""Text from a model, with transformers beside it. Usage: test_generate.py GENERATE INFERENCE_VALUES

Logits of prefill and decode, the filters of sampling and whole greedy texts are those of transformers, for a model that it
made; and what bin/generate prints, refuses and answers to signals.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from hugging_face import TABLES, numpy, torch, transformers

GENERATE, VALUES = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
VOCAB, END_OF_TEXT = 50257, 50256


def make_model(folder, layers=2, heads=2, channels=64, positions=64):
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=layers, n_head=heads, n_embd=channels, n_positions=positions,
                                     initializer_range=0.2)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # biases and LayerNorms that matter, and no two tokens that are nearly as likely
        for tensor in model.parameters():
            if tensor.ndim == 1:
                tensor += 0.1 * torch.randn_like(tensor)
    model.save_pretrained(folder)
    return model


class Generation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="test_generate_")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.model = make_model(cls.folder + "/hf")
        cls.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "GPT2_TOKENIZER": TABLES, "OMP_NUM_THREADS": "1"}

    def setUp(self):
        if not os.path.isdir(TABLES):
            self.skipTest("no BPE tables")

    def generate(self, *words, code=0, model="hf", **more):
        return subprocess.run([GENERATE, model, "--threads", "1", *words], cwd=self.folder, env=self.environment,
                              capture_output=True, timeout=300, **more)

    def run_well(self, *words, **more):
        done = self.generate(*words, **more)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout.decode()

    def refuse(self, code, expected, *words, **more):
        done = self.generate(*words, **more)
        errors = done.stderr.decode()
        self.assertEqual(done.returncode, code, errors)
        self.assertEqual(done.stdout, b"")
        self.assertEqual(len([line for line in errors.splitlines() if line.startswith("error: ")]), 1, errors)
        self.assertIn(expected, errors)

    def texts(self, *words, **more):
        return [json.loads(line) for line in self.run_well("--json", *words, **more).splitlines()]

    def values(self, *words, **more):
        done = subprocess.run([VALUES, *map(str, words)], cwd=self.folder, env=self.environment, capture_output=True, **more)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return torch.from_numpy(numpy.frombuffer(done.stdout, "<f4").reshape(-1, VOCAB).copy())

    # ---- beside transformers ----

    def check_logits(self, folder, model, count, prefilled):
        tokens = torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(2))
        ours = self.values("logits", folder, prefilled, *tokens.tolist())
        with torch.no_grad():
            theirs = model(tokens[None]).logits[0, prefilled - 1:]
        self.assertEqual(ours.shape, theirs.shape)
        self.assertLess((ours - theirs).abs().max().item(), 1e-3)

    def test_logits_of_prefill_and_decode(self):
        self.check_logits("hf", self.model, 64, 40)

    def test_logits_of_124m(self):
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
        model.save_pretrained(self.folder + "/124m")
        self.check_logits("124m", model, 24, 17)
        shutil.rmtree(self.folder + "/124m")

    def encode(self, text):
        tokenizer = transformers.GPT2Tokenizer(os.path.join(TABLES, "encoder.json"), os.path.join(TABLES, "vocab.bpe"),
                                               clean_up_tokenization_spaces=False)
        return [END_OF_TEXT] + tokenizer.encode(text)

    def test_greedy_texts(self):
        prompts = ["Hello, world", "The", "It was a dark and stormy night; the rain fell in torrents"]
        for penalty in (1.0, 1.3):
            ours = self.texts("--tokens", "40", "--temperature", "0", "--repetition_penalty", str(penalty),
                              *(word for prompt in prompts for word in ("--prompt", prompt)))
            for prompt, text in zip(prompts, ours, strict=True):
                self.assertEqual(text["prompt"], prompt)
                given = self.encode(prompt)
                with torch.no_grad():
                    whole = self.model.generate(torch.tensor([given]), max_new_tokens=40, do_sample=False,
                                                repetition_penalty=penalty, pad_token_id=END_OF_TEXT)
                self.assertEqual(text["tokens"], whole[0, len(given):].tolist())

    def test_no_bos(self):
        prompt = "It was a dark and stormy night"
        text, = self.texts("--tokens", "20", "--temperature", "0", "--prompt", prompt, "--no_bos")
        given = self.encode(prompt)[1:]
        with torch.no_grad():
            whole = self.model.generate(torch.tensor([given]), max_new_tokens=20, do_sample=False, pad_token_id=END_OF_TEXT)
        self.assertEqual(text["tokens"], whole[0, len(given):].tolist())
        self.refuse(2, "--no_bos needs a prompt", "--no_bos")
        self.refuse(2, "prompt 1 has 65 tokens; the model reads at most 64", "--no_bos", "--prompt", " a" * 65)
        shown = " ".join(self.run_well("--help").split())
        self.assertIn("The model reads <|endoftext|> before the prompt", shown)

    def test_filters_of_sampling(self):
        logits = 3 * torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(4))
        text = torch.cat([logits[0].topk(3).indices, torch.tensor([7, 7, 8])])[None]
        for temperature, top_k, top_p, min_p, penalty in (
                (1.0, 0, 1.0, 0.0, 1.0), (0.7, 50, 1.0, 0.0, 1.0), (1.3, 0, 0.9, 0.0, 1.0), (1.0, 0, 1.0, 0.05, 1.0),
                (0.8, 200, 0.5, 0.3, 1.2), (2.0, 1000, 0.95, 0.1, 0.8)):
            with self.subTest(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, penalty=penalty):
                steps = transformers.LogitsProcessorList([
                    transformers.RepetitionPenaltyLogitsProcessor(penalty), transformers.TemperatureLogitsWarper(temperature),
                    transformers.TopKLogitsWarper(top_k or VOCAB), transformers.TopPLogitsWarper(top_p),
                    transformers.MinPLogitsWarper(min_p)])
                theirs = steps(text, logits.clone()).softmax(-1)
                ours = self.values("probabilities", temperature, top_k, top_p, min_p, penalty, *text[0].tolist(),
                                   input=logits.numpy().tobytes())
                self.assertEqual((ours > 0).sum().item(), (theirs > 0).sum().item())
                self.assertLess((ours - theirs).abs().max().item(), 1e-5)

    # ---- what is printed ----

    def test_a_text_is_prompt_and_continuation(self):
        words = ("--prompt", "Hello, world", "--tokens", "8", "--seed", "5")
        text, = self.texts(*words)
        self.assertEqual(text["ending"], "length")
        self.assertEqual(len(text["tokens"]), 8)
        self.assertEqual(self.run_well(*words), "Hello, world" + text["text"] + "\n")
        self.assertNotEqual(self.texts(*words[:-1], "6"), [text])
        done = self.generate(*words)
        self.assertRegex(done.stderr.decode(), r"prefill 4 tokens in .*\(.*/s\), decode 7 tokens in .*\(.*/s\)\n$")

    def test_prompts_from_files_and_standard_input(self):
        with open(self.folder + "/prompt.txt", "w") as file:
            file.write("two\nlines\n")
        words = ("--tokens", "3")
        whole, = self.texts("--prompt_file", "prompt.txt", *words)
        self.assertEqual(whole["prompt"], "two\nlines")
        self.assertEqual(self.texts("-", *words, input=b"two\nlines\n"), [whole])
        each = self.texts("--prompts_file", "prompt.txt", "--samples", "2", *words)
        self.assertEqual([(text["prompt"], text["sample"]) for text in each],
                         [("two", 1), ("two", 2), ("lines", 1), ("lines", 2)])
        self.assertEqual(self.texts("--prompts_file", "prompt.txt", "--samples", "2", *words, "--batch_size", "1"), each)
        plain = self.run_well("--prompts_file", "prompt.txt", *words)
        self.assertEqual(plain.splitlines()[0], "--- 1 of 2")
        self.assertIn("\n--- 2 of 2\nlines", plain)
        self.assertEqual(self.texts(*words)[0]["prompt"], "")  # a text from nothing

    def test_stop_strings_end_a_text_unseen(self):
        words = ("--prompt", "Hello", "--tokens", "30", "--temperature", "0")
        whole, = self.texts(*words)
        stop = whole["text"][20:24]
        cut, = self.texts(*words, "--stop", stop, "--stop", "never said")
        self.assertEqual(cut["ending"], "stop")
        self.assertEqual(cut["text"], whole["text"][:whole["text"].index(stop)])
        self.assertEqual(self.run_well(*words, "--stop", stop), "Hello" + cut["text"] + "\n")

    def test_texts_longer_than_the_model(self):
        words = ("--prompt", "Hello", "--tokens", "100", "--temperature", "0", "--json")
        done = self.generate(*words)
        self.assertEqual(len(json.loads(done.stdout)["tokens"]), 100)
        self.assertIn("the model has 64 positions: longer texts continued from their last 32 tokens\n", done.stderr.decode())
        done = self.generate(*words, "--no_slide")
        self.assertEqual(len(json.loads(done.stdout)["tokens"]), 63)
        self.assertEqual(json.loads(done.stdout)["ending"], "positions")
        self.assertIn("the model has 64 positions: longer texts ended there\n", done.stderr.decode())

    def test_what_is_refused(self):
        self.refuse(2, "prompt 2 has 64 tokens; the model reads at most 63", "--prompt", "a", "--prompt", " a" * 64)
        self.refuse(2, "more than one place", "--prompt", "a", "-", input=b"b")
        self.refuse(2, "--stop is empty", "--stop", "")
        self.refuse(2, "--top_p", "--top_p", "1.5")
        self.refuse(2, "--temperature", "--temperature", "-1")
        self.refuse(2, "--temperature", "--temperature", "nan")
        self.refuse(2, "--tokens", "--tokens", "0")
        self.refuse(2, "--topk", "--topk", "3")
        self.refuse(2, "use --prompt TEXT", "Hello")
        self.refuse(3, "cannot open nowhere.txt", "--prompt_file", "nowhere.txt")
        self.refuse(3, "tokenizer", "--tokenizer", "nowhere")
        os.makedirs(self.folder + "/empty", exist_ok=True)
        for name in ("nosuch", "empty"):
            self.refuse(4, name, model=name)
            self.assertNotIn(b"--resume", self.generate(model=name).stderr)
        self.refuse(6, "--device cuda", "--device", "cuda")

    def test_ruined_weights(self):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=1, n_embd=16, n_positions=16))
        with torch.no_grad():
            model.transformer.ln_f.bias[0] = float("nan")
        model.save_pretrained(self.folder + "/ruined")
        done = self.generate("--tokens", "3", model="ruined")
        self.assertEqual(done.returncode, 4, done.stderr.decode())
        self.assertIn("ruined/model.safetensors: ln_f.bias holds values that are not finite", done.stderr.decode())

    def test_a_signal_ends_the_text_and_the_line(self):
        command = [GENERATE, "hf", "--threads", "1", "--prompt", "Hello", "--tokens", "10000000"]
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as writer:
            shown = writer.stdout.read(200)  # it streams
            time.sleep(0.1)
            writer.send_signal(signal.SIGINT)
            rest, errors = writer.communicate(timeout=60)
        self.assertEqual(writer.returncode, 75, errors.decode())
        text = (shown + rest).decode()  # no half character
        self.assertTrue(text.startswith("Hello") and text.endswith("\n"))
        self.assertIn("decode", errors.decode())

    def test_a_closed_pipe_ends_it(self):
        command = [GENERATE, "hf", "--threads", "1", "--tokens", "10000000"]
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as writer:
            writer.stdout.read(20)
            writer.stdout.close()
            errors = writer.stderr.read().decode()
            self.assertEqual(writer.wait(60), 0, errors)
        self.assertNotIn("error", errors)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_a_full_disk_ends_it(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([GENERATE, "hf", "--threads", "1", "--tokens", "10000000"], cwd=self.folder, env=self.environment,
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 8, done.stderr)
        self.assertIn("error: cannot write standard output (", done.stderr)

    def test_a_signal_ends_a_long_prompt(self):
        make_model(self.folder + "/long", layers=6, heads=4, channels=256, positions=1024)
        command = [GENERATE, "long", "--threads", "1", "--prompt", " a" * 1000, "-n", "64", "--batch_size", "64"]  # half a minute
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
            reader.stderr.readline()  # which model, on what
            time.sleep(0.2)
            began = time.monotonic()
            reader.send_signal(signal.SIGINT)
            text, errors = reader.communicate(timeout=120)
        self.assertLess(time.monotonic() - began, 5)
        self.assertEqual((reader.returncode, text, errors), (75, b"", b"stopped\n"))


if __name__ == "__main__":
    unittest.main()
