#!/usr/bin/env python3
"""MB/s per core of our tokenizer and of tiktoken, on the same texts, in one run.

    python3 tests/bench/bench_tokenizer.py PATH_OF_BENCH_TOKENIZER [FILE...]

Needs the tiktoken package; its ranks are built from our own tables, so nothing is downloaded. Without files: the
texts under $GPT2_SHARED/data/text (or ../shared/data/text), else this tree's own sources and pages. tiktoken's best
of three passes stands beside our first pass with an empty word cache and our best of eight.
"""
import atexit
import glob
import json
import os
import subprocess
import sys
import tempfile
import time

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""  # as in tiktoken_ext


def gpt2_encoding():
    folder = os.environ.get("GPT2_TOKENIZER") or ".deps/gpt2_bpe"
    ranks = data_gym_to_mergeable_bpe_ranks(
        vocab_bpe_file=f"{folder}/vocab.bpe", encoder_json_file=f"{folder}/encoder.json")
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": 50256}, explicit_n_vocab=50257)


def documents(path):
    with open(path, encoding="utf-8", newline="") as file:
        return [json.loads(line)["text"] for line in file] if path.endswith(".jsonl") else [file.read()]


def own_sources():
    """This tree's sources and pages as one file, for machines that have no other text."""
    paths = [path for ending in ("h", "cpp", "cu", "md") for path in sorted(glob.glob(f"**/*.{ending}", recursive=True))]
    with tempfile.NamedTemporaryFile("wb", prefix="sources-", suffix=".txt", delete=False) as text:
        for path in paths:
            with open(path, "rb") as file:
                text.write(file.read())
    atexit.register(os.remove, text.name)
    return text.name


def tiktoken_speed(encoding, texts, size):
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        tokens = sum(len(encoding.encode_ordinary(text)) for text in texts)
        best = min(best, time.perf_counter() - start)
    return tokens, size / best / 1e6


def main():
    program, files = sys.argv[1], sys.argv[2:]
    if not files:
        text = os.path.join(os.environ.get("GPT2_SHARED") or "../shared", "data/text")
        files = sorted(glob.glob(f"{text}/*.txt") + glob.glob(f"{text}/*.jsonl"))
    files = files or [own_sources()]
    encoding = gpt2_encoding()
    ours = subprocess.run([program, *files], check=True, capture_output=True, text=True).stdout.splitlines()
    print(f"{'text':32} {'bytes':>10} {'tiktoken':>9} {'ours, cold':>11} {'ours, warm':>11}   MB/s on one core; ratio cold, warm")
    for path, line in zip(files, ours):
        name, size, tokens, cold, warm = line.split("\t")
        their_tokens, theirs = tiktoken_speed(encoding, documents(path), int(size))
        if their_tokens != int(tokens):
            sys.exit(f"error: {name}: {tokens} tokens, tiktoken has {their_tokens}")
        print(f"{name:32} {size:>10} {theirs:9.1f} {float(cold):11.1f} {float(warm):11.1f}"
              f"   {float(cold) / theirs:.1f}x {float(warm) / theirs:.1f}x")


if __name__ == "__main__":
    main()
