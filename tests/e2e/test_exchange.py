#!/usr/bin/env python3
"""Weights in and out, with transformers itself. Usage: test_exchange.py TRAINER EXPORT_HF

A model that transformers made trains here and comes back; what was trained here is loaded there, and both say the same
losses. 124M whole, the other shapes of GPT-2 with two layers; with GPT2_FULL_SIZES=1, as `make test-gpu` does, nothing but all
sizes in full there and back, where there are 100 GB of memory.
"""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from hugging_face import TABLES, numpy, torch, transformers

TRAINER, EXPORT = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
LOSS = re.compile(r"val loss: ([\d.]+)")
SHAPES = {"gpt2": (12, 768), "gpt2-medium": (16, 1024), "gpt2-large": (20, 1280), "gpt2-xl": (25, 1600)}  # heads, channels
LAYERS = {"gpt2": 12, "gpt2-medium": 24, "gpt2-large": 36, "gpt2-xl": 48}
FULL_SIZES = os.environ.get("GPT2_FULL_SIZES") == "1"


def make_model(layers, heads, channels, positions=1024, seed=1):
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers, n_head=heads, n_embd=channels, n_positions=positions))
    with torch.no_grad():  # biases and LayerNorms that matter
        for name, tensor in model.named_parameters():
            if tensor.ndim == 1:
                tensor += 0.1 * torch.randn_like(tensor)
    return model.eval()


def skip_without_memory(gigabytes):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if memory < gigabytes:
        print(f"skipped: {memory:.0f} GB of memory, {gigabytes} GB wanted")
        sys.exit(77)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_exchange_")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_CACHE": self.folder + "/hub",
                            "GPT2_TOKENIZER": TABLES}
        self.tokens = numpy.random.default_rng(1).integers(0, 50257, 33 * 4 + 1).astype("<u2")
        for name in ("train", "val"):
            tokens = self.tokens if name == "val" else self.tokens[::-1].copy()
            with open(f"{self.folder}/{name}.bin", "wb") as file:  # llm.c's shard: 256 int32, then tokens
                file.write(struct.pack("<3i", 20240520, 1, len(tokens)) + bytes(1012) + tokens.tobytes())

    def call(self, code, *command):
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout if code == 0 else done.stderr

    def train(self, *more, code=0):
        return self.call(code, TRAINER, "--device", "cpu", "--precision", "fp32", "--train_data", "train.bin", "--val_data", "val.bin",
                         "--seq_len", "32", "--batch_size", "1", "--target_batch_size", "1", "--eval_sequences", "4", *more)

    def loss_of(self, model):
        rows = torch.tensor(self.tokens[:-1].astype("int64"))[:128].view(4, 32)
        targets = torch.tensor(self.tokens[1:].astype("int64"))[:128].view(4, 32)
        with torch.no_grad():
            logits = model(rows).logits
        return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1)).item()

    def our_loss(self, source):
        return float(LOSS.search(self.train("--init_from", source, "--eval_only")).group(1))


class FullSizes(Folder):
    def test_there_and_back(self):
        for name, (heads, channels) in SHAPES.items():
            with self.subTest(model=name):
                model = make_model(LAYERS[name], heads, channels)
                model.save_pretrained(self.folder + "/hf")
                self.assertAlmostEqual(self.our_loss("hf"), self.loss_of(model), delta=1e-4)
                del model
                out = self.train("--init_from", "hf", "--max_steps", "1", "--run_name", name, "--sample_tokens", "0",
                                 "--no-save_best")
                shutil.rmtree(self.folder + "/hf")
                self.call(0, EXPORT, "checkpoints_fp32/" + name, "--output", "out")
                shutil.rmtree(f"{self.folder}/checkpoints_fp32/{name}")
                self.assertEqual(os.path.exists(self.folder + "/out/model.safetensors.index.json"), name == "gpt2-xl")
                back = transformers.AutoModelForCausalLM.from_pretrained(self.folder + "/out").eval()
                self.assertAlmostEqual(self.loss_of(back), float(LOSS.findall(out)[-1]), delta=1e-4)
                shutil.rmtree(self.folder + "/out")


class Exchange(Folder):
    def test_every_shape_of_gpt2_says_the_same_loss(self):
        for name, (heads, channels) in SHAPES.items():
            with self.subTest(model=name):
                model = make_model(12 if name == "gpt2" else 2, heads, channels)
                model.save_pretrained(self.folder + "/hf", max_shard_size="200MB")  # several files
                self.assertAlmostEqual(self.our_loss("hf"), self.loss_of(model), delta=1e-4)
                if name == "gpt2":
                    self.check_that_an_export_can_be_stopped()
                shutil.rmtree(self.folder + "/hf")

    def check_that_an_export_can_be_stopped(self):
        for sent in (signal.SIGINT, signal.SIGTERM):
            before = set(os.listdir(self.folder))
            with subprocess.Popen([EXPORT, "hf", "--output", "out"], cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True) as export:
                while set(os.listdir(self.folder)) == before:
                    self.assertIsNone(export.poll())
                export.send_signal(sent)
                errors = export.communicate(timeout=60)[1]
            self.assertEqual(export.returncode, 75, errors)
            self.assertIn("error: stopped: out was not written\n", errors)
            self.assertEqual(set(os.listdir(self.folder)), before)

    def test_there_and_back(self):
        make_model(2, 2, 64).save_pretrained(self.folder + "/hf")
        out = self.train("--init_from", "hf", "--max_steps", "3", "--max_lr", "1e-3", "--run_name", "tuned", "--sample_tokens", "0")
        self.assertIn("starting from the weights of hf", out)
        ours = float(LOSS.findall(out)[-1])
        for kind, tolerance in (("fp32", 1e-4), ("bf16", 3e-2)):
            said = self.call(0, EXPORT, "checkpoints_fp32/tuned", "--output", f"out_{kind}", "--type", kind)
            self.assertTrue(said.endswith(f'load it: GPT2LMHeadModel.from_pretrained("out_{kind}")\n'), said)
            back = transformers.AutoModelForCausalLM.from_pretrained(f"{self.folder}/out_{kind}")
            self.assertEqual(type(back).__name__, "GPT2LMHeadModel")
            self.assertAlmostEqual(self.loss_of(back.float().eval()), ours, delta=tolerance)
        self.assertAlmostEqual(self.our_loss("out_fp32"), ours, delta=1e-5)
        self.assertAlmostEqual(self.our_loss("checkpoints_fp32/tuned/latest"), ours, delta=1e-5)
        again = self.call(2, EXPORT, "checkpoints_fp32/tuned", "--output", "out_fp32")
        self.assertIn("--overwrite", again)
        os.makedirs(self.folder + "/out_fp32/.git")
        self.assertIn("out_fp32 holds .git", self.call(2, EXPORT, "checkpoints_fp32/tuned", "--output", "out_fp32", "--overwrite"))
        os.rmdir(self.folder + "/out_fp32/.git")
        self.call(0, EXPORT, "checkpoints_fp32/tuned", "--output", "out_fp32/", "--overwrite")
        self.assertEqual([name for name in os.listdir(self.folder) if ".tmp-" in name or ".old-" in name], [])

    def test_the_tokenizer_comes_along(self):
        if not os.path.isdir(self.environment["GPT2_TOKENIZER"]):
            self.skipTest("no BPE tables")
        make_model(1, 1, 16).save_pretrained(self.folder + "/hf")
        self.call(0, EXPORT, "hf", "--output", "out")
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder + "/out")
        self.assertEqual(tokenizer.encode("Hello, world<|endoftext|>"), [15496, 11, 995, 50256])

    def test_llmc(self):
        model = make_model(2, 2, 64, positions=64)
        state, order = model.state_dict(), ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                                            "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
                                            "mlp.c_proj.weight", "mlp.c_proj.bias"]
        for version in (3, 5):
            tensors = [torch.cat([state["transformer.wte.weight"], torch.zeros(47, 64)]), state["transformer.wpe.weight"]]
            for name in order:
                for layer in range(2):
                    tensor = state[f"transformer.h.{layer}.{name}"]
                    tensors.append(tensor.T.contiguous() if tensor.ndim == 2 else tensor)
            tensors += [state["transformer.ln_f.weight"], state["transformer.ln_f.bias"]]
            with open(self.folder + "/model.bin", "wb") as file:
                file.write(struct.pack("<8i", 20240326, version, 64, 50257, 2, 2, 64, 50304) + bytes(1024 - 32))
                for tensor in tensors:
                    file.write(tensor.numpy().astype("<f4").tobytes() if version == 3 else
                               tensor.bfloat16().view(torch.int16).numpy().tobytes())
            self.assertAlmostEqual(self.our_loss("model.bin"), self.loss_of(model), delta=1e-4 if version == 3 else 3e-2)
        os.truncate(self.folder + "/model.bin", 5000)
        self.assertIn("it has 5000 bytes", self.train("--init_from", "model.bin", "--eval_only", code=4))

    def test_names_of_the_hub(self):
        snapshot = self.folder + "/hub/models--openai-community--gpt2-tiny/snapshots/0123"
        make_model(1, 1, 16).save_pretrained(snapshot)
        self.our_loss("gpt2-tiny")
        self.our_loss("openai-community/gpt2-tiny")
        self.assertIn("none of that name", self.train("--init_from", "gpt2-huge", "--eval_only", code=4))

    def test_what_cannot_be_taken_over(self):
        make_model(1, 1, 16, positions=24).save_pretrained(self.folder + "/hf")
        self.assertIn("24 positions", self.train("--init_from", "hf", "--eval_only", code=2))
        self.assertIn("the flags ask for 2 layers", self.train("--init_from", "hf", "--seq_len", "16", "--layers", "2", code=2))
        config = self.folder + "/hf/config.json"
        with open(config) as file:
            good = json.load(file)
        for key, value in {"activation_function": "relu", "model_type": "llama", "n_layer": 2, "n_head": "one"}.items():
            with open(config, "w") as file:
                json.dump({**good, key: value}, file)
            self.assertRegex(self.train("--init_from", "hf", "--seq_len", "16", code=4), r"\Aerror: cannot use hf")
        with open(config, "w") as file:
            json.dump(good, file)
        weights = self.folder + "/hf/model.safetensors"
        os.truncate(weights, os.path.getsize(weights) - 4)
        self.assertIn("model.safetensors", self.train("--init_from", "hf", "--seq_len", "16", code=4))
        self.assertEqual(self.call(4, EXPORT, "nowhere", "--output", "out").count("\n"), 1)
        self.assertFalse(os.path.exists(self.folder + "/out"))


if __name__ == "__main__":
    if FULL_SIZES:
        skip_without_memory(100)
    unittest.main(defaultTest="FullSizes" if FULL_SIZES else "Exchange")
