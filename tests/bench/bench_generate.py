#!/usr/bin/env python3
"""Tokens per second of bin/generate beside those of transformers' generate, on one GPU. Usage: bench_generate.py GENERATE

A GPT-2 of 124M parameters with random weights, in BF16, writes 512 tokens to a prompt of 16 (top-k 50, temperature 0.8), one
text and 64 at a time. Ours counts the time from the first token on; transformers' the whole call, of which reading the prompt
is one step in 512. Exit status 77: no GPU, torch or transformers here.
"""
import os
import re
import subprocess
import sys
import tempfile
import time

TOKENS, PROMPT = 512, "On the first day of the new year the old captain of the"


def transformers_speed(model, rows):
    import torch
    inputs = torch.randint(0, 50000, (rows, 16), device="cuda")
    settings = {"attention_mask": torch.ones_like(inputs), "do_sample": True, "top_k": 50, "temperature": 0.8, "pad_token_id": 50256}

    def write(tokens):
        model.generate(inputs, min_new_tokens=tokens, max_new_tokens=tokens, **settings)
        torch.cuda.synchronize()

    with torch.inference_mode():
        write(8)
        begin = time.monotonic()
        write(TOKENS)
    return rows * TOKENS / (time.monotonic() - begin)


def our_speed(program, folder, rows):
    command = [program, folder, "--device", "cuda", "--prompt", PROMPT, "--samples", str(rows), "--batch_size", str(rows),
               "--tokens", str(TOKENS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"decode (\d+) tokens in ([0-9.]+)(ms|s)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"bench_generate: {' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return int(found[1]) / (float(found[2]) * (1e-3 if found[3] == "ms" else 1))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        import torch
        import transformers
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        sys.exit(77)
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
        model.save_pretrained(folder)
        model = model.to("cuda", torch.bfloat16)
        print(f"{'texts':>5} {'ours':>12} {'transformers ' + transformers.__version__:>24}   tokens/s")
        for rows in (1, 64):
            print(f"{rows:5d} {our_speed(program, folder, rows):12.0f} {transformers_speed(model, rows):24.0f}", flush=True)


if __name__ == "__main__":
    main()
