#!/usr/bin/env python3
"""The whole model against Hugging Face's GPT2LMHeadModel and PyTorch's autograd: the same weights, the same tokens, the
same accumulated micro-batches. Logits, loss, norm and every gradient tensor must point where theirs do and be as long.

usage: test_parity_hf.py PATH/TO/dump_gradients [OPTION of dump_gradients...]
           test_parity_hf.py build/release/tests/parity/dump_gradients
           test_parity_hf.py build/release/tests/parity/dump_gradients --device cuda --precision fp8 --model gpt2

Theirs computes in FP32, on the GPU where PyTorch sees one. Exit status: 0 they agree, 1 they do not, 77 PyTorch,
transformers or the device is missing (ctest counts that as skipped).
"""
import collections
import math
import os
import re
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is to be downloaded
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel

    from gradient_dump import read_dump, write_dump
except (ImportError, RuntimeError) as missing:  # transformers wraps a failed import of its own in a RuntimeError
    print(f"skipped: {str(missing).strip().splitlines()[0]}")
    sys.exit(77)

Limits = collections.namedtuple("Limits", "cosine mean_cosine norm error loss key_bias")
# In BF16 the gradients of QKV and of the LayerNorm before it come out up to 2.8% too long in the middle blocks of 124M, at
# a cosine of 0.9994, and all others within 1.9%. It is not the rounding of weights: with LayerNorm's weights read in FP32,
# and with Hugging Face's matrices rounded to BF16 as ours are, the figures stay (one H200, 2026-11-15). Hence 4%.
LIMITS = {  # cosine: of every tensor, at least; mean_cosine: of all gradients; the others: relative, at most
    "fp32": Limits(cosine=0.99999, mean_cosine=0.99999, norm=1e-4, error=1e-4, loss=1e-5, key_bias=1e-4),
    "bf16": Limits(cosine=0.999, mean_cosine=0.999, norm=0.04, error=0.05, loss=2e-3, key_bias=0.05),
    "fp8": Limits(cosine=0.98, mean_cosine=0.99, norm=0.07, error=0.2, loss=1e-2, key_bias=0.05),
}
CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


class HuggingFace:
    """GPT2LMHeadModel with our weights, and the gradients of the mean loss over all micro-batches."""

    def __init__(self, notes, dump):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_float32_matmul_precision("highest")  # no TF32
        weights = {name[len("weight/"):]: value for name, value in dump.items() if name.startswith("weight/")}
        self.positions = [int(name[len("logits/"):]) for name in dump if name.startswith("logits/")]
        self.vocab = dump[f"logits/{self.positions[0]}"].shape[0]
        config = GPT2Config(
            vocab_size=self.vocab, n_positions=weights["wpe.weight"].shape[0], n_embd=weights["wpe.weight"].shape[1],
            n_layer=sum(name.endswith("ln_1.weight") for name in weights), n_head=int(notes["heads"]),
            activation_function="gelu_new", layer_norm_epsilon=1e-5, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
        self.model = GPT2LMHeadModel(config).float().to(self.device).train()
        assert self.model.lm_head.weight is self.model.transformer.wte.weight, "the embeddings are not tied"
        parameters = self.parameters()
        assert parameters.keys() == weights.keys(), f"other tensors: {parameters.keys() ^ weights.keys()}"
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(self.in_their_layout(name, weights[name]))

    def parameters(self):
        """By our names."""
        return {re.sub(r"^transformer\.", "", name): value for name, value in self.model.named_parameters()}

    def in_their_layout(self, name, array):
        """Conv1D keeps (in, out), we keep (out, in); our padded vocabulary rows are left out."""
        tensor = torch.from_numpy(np.array(array)).to(self.device)
        if name == "wte.weight":
            return tensor[:self.vocab]
        return tensor.T if name.endswith(CONV1D) else tensor

    def run(self, inputs, targets):
        """Accumulates the gradients. The mean loss, and the logits of the first sequence by position."""
        inputs, targets = (torch.from_numpy(np.array(tokens)).long().to(self.device) for tokens in (inputs, targets))
        tokens = (targets >= 0).sum()
        total, logits_of = 0.0, {}
        for tokens_in, tokens_out in zip(inputs, targets):
            logits = self.model(input_ids=tokens_in, use_cache=False).logits
            if not logits_of:
                logits_of = {position: logits[0, position].detach() for position in self.positions}
            loss = F.cross_entropy(logits.flatten(0, 1), tokens_out.flatten(), ignore_index=-1, reduction="sum")
            loss = loss / tokens
            loss.backward()
            total += loss.item()
        return total, logits_of


class Comparison:
    def __init__(self, limits):
        self.limits = limits
        self.rows = collections.OrderedDict()  # kind: [(cosine, ratio, error, name)]
        self.failures = []

    def limit(self, what, value, bound):
        if not value <= bound:  # also a NaN
            self.failures.append(f"{what}: {value:.3g}, allowed {bound:g}")

    def tensor(self, kind, name, ours, theirs):
        ours, theirs = ours.flatten().double(), theirs.flatten().double()
        cosine = (ours @ theirs / (ours.norm() * theirs.norm())).item()
        ratio = (ours.norm() / theirs.norm()).item()
        error = ((ours - theirs).norm() / theirs.norm()).item()
        self.rows.setdefault(kind, []).append((cosine, ratio, error, name))
        self.limit(f"1 - cosine of {name}", 1 - cosine, 1 - self.limits.cosine)
        self.limit(f"norm of {name}", abs(ratio - 1), self.limits.norm)
        self.limit(f"error of {name}", error, self.limits.error)

    def table(self):
        print(f"{'':22} {'tensors':>7} {'least cosine':>13} {'norm ratios':>17} {'error':>8}  furthest")
        for kind, found in self.rows.items():
            worst = min(found, key=lambda row: -math.inf if math.isnan(row[0]) else row[0])
            low, high = min(row[1] for row in found), max(row[1] for row in found)
            error, furthest = max(row[2] for row in found), worst[3] if len(found) > 1 else ""
            numbers = f"{len(found):>7} {worst[0]:>13.7f} {low:>8.5f} {high:>8.5f} {error:>8.1e}"
            print(f"{kind:22} {numbers}  {furthest}".rstrip())


def compare(notes, dump, theirs):
    limits = LIMITS[notes["precision"]]
    comparison = Comparison(limits)
    loss, logits = theirs.run(dump["inputs"], dump["targets"])
    tokens = int((dump["targets"] >= 0).sum())

    for position, row in logits.items():
        ours = torch.from_numpy(np.array(dump[f"logits/{position}"])).to(theirs.device)
        comparison.tensor("logits", f"position {position}", ours, row)
    squares, cosines = 0.0, []
    for name, parameter in theirs.parameters().items():
        kind = re.sub(r"^h\.\d+\.", "h.*.", name)
        ours, gradient = theirs.in_their_layout(name, dump["gradient/" + name]) / tokens, parameter.grad
        squares += gradient.double().square().sum().item()
        if name.endswith("attn.c_attn.bias"):  # softmax does not see a shift of all keys: that gradient is zero
            (q, k, v), expected = ours.chunk(3), gradient.chunk(3)
            comparison.limit(f"key part of {name}", (k.norm() / gradient.norm()).item(), limits.key_bias)
            ours, gradient = torch.cat([q, v]), torch.cat([expected[0], expected[2]])
        comparison.tensor(kind, name, ours, gradient)
        cosines.append(comparison.rows[kind][-1][0])
    padding = dump["gradient/wte.weight"][theirs.vocab:]
    comparison.limit("gradient of the padded vocabulary", float(np.abs(padding).max(initial=0)), 0)

    mean = sum(cosines) / len(cosines)
    norm = math.sqrt(squares)
    our_loss, our_norm = float(dump["loss"][0]), float(dump["grad_norm"][0])
    loss_error, norm_error = abs(our_loss / loss - 1), abs(our_norm / norm - 1)
    comparison.limit("1 - mean cosine", 1 - mean, 1 - limits.mean_cosine)
    comparison.limit("loss", loss_error, limits.loss)
    comparison.limit("gradient norm", norm_error, limits.norm)
    comparison.table()
    print(f"loss {our_loss:.6f} and {loss:.6f} (off by {loss_error:.1e}, allowed {limits.loss:g}), "
          f"gradient norm {our_norm:.5f} and {norm:.5f} ({norm_error:.1e}, {limits.norm:g})")
    least = min(cosines)
    print(f"{len(cosines)} gradients: least cosine {least:.7f} (at least {limits.cosine:g}), mean {mean:.7f} (at least "
          f"{limits.mean_cosine:g}), norms within {limits.norm:g}")
    return comparison.failures


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        write_dump(sys.argv[1:], folder)
        notes, dump = read_dump(folder)
        micro_steps, batch, length = dump["inputs"].shape
        theirs = HuggingFace(notes, dump)
        print(f"{notes['model']} in {notes['precision'].upper()} on {notes['device']}, {micro_steps} micro-steps of "
              f"{batch} x {length}; transformers {transformers.__version__}, torch {torch.__version__} in FP32 on "
              f"{theirs.device}")
        failures = compare(notes, dump, theirs)
    for failure in failures:
        print(f"FAILED  {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
