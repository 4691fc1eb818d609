#!/usr/bin/env python3
"""bin/prepare_data and text without a place to cut: any input takes time in proportion to its size, a signal is answered within a
second, and a line that is too long is named. Usage: test_long_text.py PREPARE_DATA"""
import filecmp
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PREPARE = os.path.abspath(sys.argv.pop(1))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLES = os.environ.get("GPT2_TOKENIZER") or os.path.join(os.environ.get("GPT2_DEPS_DIR", os.path.join(ROOT, ".deps")), "gpt2_bpe")
if not os.path.isdir(TABLES):
    print("skipped: no BPE tables")
    sys.exit(77)
PROSE = "山路很长，天色已经晚了。老人说：“明天再走吧！”\n他们在河边的小屋里住了一夜。\n"
TEXTS = {"newlines": "\n", "letter": "a", "prose": PROSE, "emoji": "😀🎉", "spaces": " ", "ideographic_spaces": "\u3000"}
SIZE = 4_600_000  # bytes: beyond the 4 MiB of a chunk. By the square of the lines, this would take an hour
SECONDS = 60  # a few, on a busy machine or under sanitizers
ANSWER = 3  # seconds: one, and room for a busy machine


def text_of(name, size=SIZE):
    unit = TEXTS[name].encode()
    return unit * (size // len(unit))


def bytes_of_tokens():
    """By id, as encoder.json spells them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}
    with open(os.path.join(TABLES, "encoder.json"), encoding="utf-8") as file:
        return {number: bytes(byte_of[c] for c in spelling) if spelling != "<|endoftext|>" else b""
                for spelling, number in json.load(file).items()}


class LongText(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_long_text_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = {**os.environ, "GPT2_TOKENIZER": TABLES, "ASAN_OPTIONS": "detect_leaks=0"}

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)

    def start(self, *arguments, **streams):
        return subprocess.Popen([PREPARE, *arguments, "--val_fraction", "0"], cwd=self.folder, env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **{"stdin": subprocess.DEVNULL, **streams})

    def run_to_end(self, *arguments, code=0):
        with self.start(*arguments) as running:
            try:
                out, error = running.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                running.kill()
                self.fail(f"{arguments}: still running after {SECONDS} s")
        self.assertEqual(running.returncode, code, out + error)
        return error

    def shard(self, folder):
        with open(self.path(f"{folder}/train_000000.bin"), "rb") as file:
            content = file.read()
        return struct.unpack(f"<{(len(content) - 1024) // 2}H", content[1024:])

    def test_time_in_proportion_and_the_text_comes_back(self):
        spelled = bytes_of_tokens()
        for name in TEXTS:
            text = text_of(name)
            self.write("text.txt", text)
            self.run_to_end("text.txt", "-o", name, "--no-shuffle")
            self.assertTrue(b"".join(map(spelled.get, self.shard(name))) == text, name)  # no diff of megabytes
            shutil.rmtree(self.path(name))

    def stop(self, running, number):
        begin = time.monotonic()
        running.send_signal(number)
        out, error = running.communicate(timeout=SECONDS)
        self.assertEqual(running.returncode, 75, out + error)
        self.assertLess(time.monotonic() - begin, ANSWER)

    def test_a_signal_is_answered_and_a_resumed_one_ends_the_same(self):
        size = 17 << 20  # more than 16 MiB: a chunk that has to be cut somewhere
        self.write("text.txt", text_of("letter", size) + b"\n" + text_of("prose"))
        common = ["text.txt", "--no-shuffle", "-j", "1", "--dataset", "same", "--journal_seconds", "0"]
        self.run_to_end(*common, "-o", "whole")
        for number, seconds in ((signal.SIGTERM, 0.0), (signal.SIGINT, 0.3)):
            with self.start(*common, "-o", "stopped") as running:
                while not os.path.exists(self.path("stopped/.prepare/bucket_0")):
                    time.sleep(0.01)
                time.sleep(seconds)
                if running.poll() is None:
                    self.stop(running, number)
        if os.path.exists(self.path("stopped/.prepare")):
            self.run_to_end(*common, "-o", "stopped")
        for name in ("dataset.json", "train_000000.bin"):
            self.assertTrue(filecmp.cmp(self.path("whole/" + name), self.path("stopped/" + name), shallow=False), name)

    def test_a_pipe_that_brings_nothing_does_not_hold_it(self):
        with self.start("-", "--input_format", "txt", "-o", "out", stdin=subprocess.PIPE) as running:
            running.stdin.write("a beginning\n")
            running.stdin.flush()
            while not os.path.exists(self.path("out/.prepare")):
                time.sleep(0.01)
            time.sleep(0.2)
            self.stop(running, signal.SIGTERM)

    def test_a_line_of_a_gigabyte_names_its_file(self):
        self.write("big.jsonl", b'{"text": "short"}\n')
        os.truncate(self.path("big.jsonl"), 1_200_000_000)  # zeros, that take no disk
        error = self.run_to_end("big.jsonl", "-o", "out", code=3)
        self.assertRegex(error, r"\Aerror: big\.jsonl:2 is longer than [^\n]*\n\Z")
        os.truncate(self.path("big.jsonl"), 300_000_000)
        error = self.run_to_end("big.jsonl", "-o", "out", "--skip_bad_lines")
        self.assertIn("1 bad line skipped", error)


if __name__ == "__main__":
    unittest.main()
