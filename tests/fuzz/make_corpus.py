#!/usr/bin/env python3
"""Makes the seeds of tests/fuzz/corpus anew; inputs that once broke a reader (found_*) stay. Usage: make_corpus.py"""
import os
import random
import struct

import h5py
import numpy

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def put(target, name, content):
    os.makedirs(os.path.join(CORPUS, target), exist_ok=True)
    with open(os.path.join(CORPUS, target, name), "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def text(value):
    return numpy.array(value.encode(), f"S{max(1, len(value.encode()))}")


def config():
    put("config", "flat.toml", 'model = "nano"\nmax_lr = 6e-4 # peak\nuse_fp8 = true\nmax_steps = "auto"\n'
        'prompt = "a # \\"b\\" \\u00e4\\n"\n')
    put("config", "literal.toml", "prompt = 'C:\\path'\nseed = 1_337\nbeta1 = 0.9\n\n# nothing\n")
    put("config", "flat.yaml", "---\nmodel: nano\nmax_lr: 6e-4 # peak\nprompt: \"a: b\"\nname: 'it''s'\n")
    put("config", "broken.toml", 'a = "no end\nb\n= 3\nc = [1, 2]\n[table]\n')


def shards():
    tokens = list(range(40))
    put("shard_bin", "whole", struct.pack("<3i", 20240520, 1, len(tokens)) + struct.pack("<40H", *tokens))
    put("shard_bin", "counts_more", struct.pack("<3i", 20240520, 1, 2**31 - 1) + struct.pack("<40H", *tokens))
    put("shard_bin", "negative", struct.pack("<3i", 20240520, 1, -1) + b"12")
    put("shard_bin", "header_alone", struct.pack("<3i", 20240520, 1, 0))
    put("shard_bin", "version_2", struct.pack("<3i", 20240520, 2, 40))
    newer = ("v108", "latest")
    for name, count, chunks, libver in (("small.h5", 40, None, "earliest"), ("two_blocks.h5", 300, None, "earliest"),
                                        ("chunked.h5", 40, (16,), "earliest"), ("newer.h5", 40, None, newer),
                                        ("newer_chunked.h5", 40, (16,), newer)):
        path = os.path.join(CORPUS, name)
        with h5py.File(path, "w", libver=libver) as file:
            file.create_dataset("tokens", data=numpy.arange(count, dtype="<u2"), chunks=chunks)
            hashes = file.create_dataset("block_hashes", data=numpy.arange(max(1, count * 2 // 512), dtype="<u8"))
            hashes.attrs["block_bytes"] = numpy.uint64(512)
            file.attrs["version"] = numpy.uint64(1)
            file.attrs["source"] = "seed"
            file.attrs["tokenizer"] = "gpt2"
        with open(path, "rb") as file:
            put("shard_hdf5", name, file.read())
        os.remove(path)


def tokenizer():
    put("tokenizer", "few_merges", b'{"a": 64, "b": 65, "ab": 256}\0#version: 0.2\na b\nab a\n\xc4\xa0 t\n')
    put("tokenizer", "unknown", b'{}\0#version\nab c\n')
    put("tokenizer", "no_tables", b"")
    numbers = random.Random(1)
    lines = [f"{chr(numbers.randrange(97, 123))} {chr(numbers.randrange(97, 123))}" for _ in range(40)]
    put("tokenizer", "forty", b'{"!": 0}\0#version: 0.2\n' + "\n".join(lines).encode() + b"\n")


def checkpoint():
    path = os.path.join(CORPUS, "state.h5")
    with h5py.File(path, "w", libver="earliest") as file:
        for name, value in (("format", "GPT-2 training checkpoint"), ("program_version", "0.1.0"),
                            ("written", "2026-11-15T14:09:31Z")):
            file.attrs.create(name, text(value))
        file.attrs["format_version"] = numpy.int64(3)
        config = file.create_group("config")
        config["name"] = text("small")
        for name, value in (("layers", 1), ("heads", 1), ("channels", 8), ("seq_len", 8), ("vocab", 50257),
                            ("padded_vocab", 50304)):
            config[name] = numpy.int64(value)
        train = file.create_group("train")
        for name, value in (("step", 1), ("loader_position", 4), ("tokens", 64), ("last_val_step", -1)):
            train[name] = numpy.int64(value)
        train["seed"] = numpy.uint64(1337)
        for name in ("best_val_loss", "last_val_loss"):
            train[name] = numpy.float64(1e30)
        for name, value in (("run_name", "run"), ("options_toml", "seed = 1337\n"), ("precision", "fp32")):
            train[name] = text(value)
        model = file.create_group("model")
        model["adam_step"] = numpy.int64(1)
        model["params/wte.weight"] = numpy.arange(256, dtype="<f4").reshape(32, 8)
        model["params/ln_f.bias"] = numpy.ones(8, "<f4")
        model["fp8/recipe"] = text("hybrid")
    with open(path, "rb") as file:
        put("checkpoint", "one_rank.h5", file.read())
    os.remove(path)


def frames():
    """The first byte chooses the reader (fuzz_frames.cpp), the second is its number."""
    def framed(kind, body, magic=0x4B523247):
        return struct.pack("<3I", magic, kind, len(body)) + body

    def packed(*values):
        return b"".join(struct.pack("<I", len(value)) + value if isinstance(value, bytes) else struct.pack("<i", value) for value in values)

    member = packed(4711, b"node7", b"10.0.0.1")
    put("frames", "two_frames", bytes([0, 99]) + framed(0, b"n" * 32) + framed(1, b"h" * 90))
    put("frames", "web", bytes([0, 255]) + b"GET / HTTP/1.1\r\n\r\n")
    put("frames", "too_large", bytes([0, 255]) + framed(1, b"x" * 2000))
    put("frames", "unknown_type", bytes([0, 255]) + framed(12, b""))
    put("frames", "sealed", bytes([1, 0]) + b"\6\5hello\7\0\6\3abc")
    put("frames", "sealed_altered", bytes([1, 20]) + b"\6\5hello\7\0\6\3abc")
    put("frames", "called", bytes([2, 1]) + framed(1, b"c" * 32 + b"who" + b"m" * 32))
    put("frames", "caller", bytes([2, 0]) + framed(0, b"s" * 32) + framed(2, b"m" * 32))
    put("frames", "hello", bytes([3, 0]) + packed(2, 1, 8) + member)
    put("frames", "roster", bytes([4, 2]) + member * 3)
    put("frames", "heartbeat", bytes([5, 0]) + struct.pack("<Bq", 1, 1500))
    put("frames", "heartbeat_of_ages", bytes([5, 0]) + struct.pack("<Bq", 2, 2**62))
    put("frames", "texts", bytes([6, 1]) + packed(b"from 0", b""))
    put("frames", "error", bytes([7, 0]) + packed(3, b"no such shard", b"look again"))
    put("frames", "published", bytes([8, 0]) + b"gpt2_ranks 2\nkey " + b"0123456789abcdef" * 4 + b"\nport 4000\naddress 10.0.0.1\nend\n")
    put("frames", "port", bytes([9, 0]) + b"65535")
    put("frames", "master", bytes([10, 0]) + b"[::1]:4000")
    put("frames", "master_without_end", bytes([10, 0]) + b"[::1")


for make in (config, shards, tokenizer, checkpoint, frames):
    make()
