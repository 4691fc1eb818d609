#!/usr/bin/env python3
"""bin/prepare_data as people use it: from text to a trained model, killed and stopped on the way, with broken inputs, and
with downloads from a server that misbehaves.

    tests/e2e/test_prepare_data.py PREPARE_DATA TRAINER [FAULT_SHIM]
"""
import filecmp
import gzip
import hashlib
import http.server
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STAND_INS = os.path.join(ROOT, "tests", "stand_ins")  # a pyarrow for this test
END_OF_TEXT = 50256
TRAIN = ["--model", "nano", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "16", "--batch_size", "2",
         "--target_batch_size", "4", "--max_steps", "2", "--eval_sequences", "4", "--sample_tokens", "0", "--threads", "1",
         "--checkpoint_freq", "0", "--device", "cpu"]


def stories(count, seed=1):
    """Texts of a few hundred bytes, no two of them equal."""
    words = random.Random(seed)
    vocabulary = ["river", "stone", "the", "a", "walks", "under", "bright", "Dr.", "12", "it's", "naïve", "語", "of", "?"]
    return [f"Story {number}: " + " ".join(words.choices(vocabulary, k=words.randrange(5, 90))) for number in range(count)]


def as_lines(texts):
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_prepare_data_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = {**os.environ, "PYTHONPATH": STAND_INS, "GPT2_TOKENIZER": TABLES, "CUDA_VISIBLE_DEVICES": "",
                            "ASAN_OPTIONS": "detect_leaks=0"}
        for name in ("HF_TOKEN", "HF_ENDPOINT", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
            self.environment.pop(name, None)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())

    def run_program(self, program, *arguments, code=0, **options):
        done = subprocess.run([program, *arguments], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120, **options)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout[-2000:]}{done.stderr}")
        return done

    def prepare(self, *arguments, **options):
        return self.run_program(PREPARE, *arguments, **options)

    def refused(self, *arguments, code, says, leaves=None, program=None):
        """One line on standard error, the exit code, and nothing in the folder that was to be made."""
        done = self.run_program(program or PREPARE, *arguments, code=code)
        self.assertRegex(done.stderr, r"\Aerror: [^\n]*\n\Z", f"{arguments}")
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, done.stderr)
        if leaves is not None:
            self.assertFalse(os.path.exists(self.path(leaves)) and os.listdir(self.path(leaves)), f"{arguments}")
        return done

    def tokens(self, folder, prefix="train"):
        out = []
        for name in sorted(os.listdir(self.path(folder))):
            if name.startswith(prefix + "_"):
                with open(self.path(f"{folder}/{name}"), "rb") as file:
                    content = file.read()
                self.assertEqual(struct.unpack("<3i", content[:12]), (20240520, 1, (len(content) - 1024) // 2))
                out += struct.unpack(f"<{(len(content) - 1024) // 2}H", content[1024:])
        return out

    def documents(self, folder, prefix="train"):
        found, tokens = [], self.tokens(folder, prefix)
        for token in tokens:
            if token == END_OF_TEXT:
                found.append([])
            else:
                found[-1].append(token)
        return found

    def assert_same(self, first, second):
        compared = filecmp.dircmp(self.path(first), self.path(second))
        self.assertEqual((compared.left_only, compared.right_only), ([], []))
        _, different, errors = filecmp.cmpfiles(self.path(first), self.path(second), compared.common_files, shallow=False)
        self.assertEqual((different, errors), ([], []))
        self.assertGreater(len(compared.common_files), 1)


class Bytes(Case):
    """What comes out depends on the text and the options alone."""

    def test_threads_memory_and_packing_change_nothing(self):
        texts = stories(6000)
        self.write("a.jsonl", as_lines(texts[:3500]))
        self.write("b.jsonl", as_lines(texts[3500:]))
        common = ["--val_fraction", "0.01", "--shard_tokens", "60000"]
        self.prepare("a.jsonl", "b.jsonl", "-o", "one", "-j", "1", "--dataset", "set", *common)
        self.assertEqual(sorted(os.listdir(self.path("one"))),
                         ["dataset.json"] + [f"train_{i:06}.bin" for i in range(len(self.tokens("one")) // 60000 + 1)] +
                         ["val_000000.bin"])
        self.assertEqual(len(self.documents("one")), 5940)
        self.prepare("a.jsonl", "b.jsonl", "-o", "four", "-j", "4", "--memory", "1", "--dataset", "set", *common)
        self.assert_same("one", "four")
        self.prepare("--verify", "one")

        # The same text in other wrappings: other sources, the same tokens.
        expected = self.tokens("one"), self.tokens("one", "val")
        self.write("gz/a.jsonl.gz", gzip.compress(as_lines(texts[:1000]).encode()) +
                   gzip.compress(as_lines(texts[1000:3500]).encode()))
        self.write("gz/b.jsonl", as_lines(texts[3500:]))
        self.write("parquet/a.parquet", "\n".join(texts[:3500]))
        self.write("parquet/b.parquet", "\n".join(texts[3500:]))
        self.write("text/a.txt.gz", gzip.compress("\n<|endoftext|>\n".join(texts).encode()))
        wrappings = ["gz", "parquet", "text"]
        self.prepare("parquet", "-o", "out_many_readers", "-j", "16", *common)  # four converters share a file
        self.assertEqual((self.tokens("out_many_readers"), self.tokens("out_many_readers", "val")), expected)
        if shutil.which("zstd"):
            for name in ("a", "b"):
                self.write("zst/.keep", "")
                subprocess.run(["zstd", "-q", self.path(f"{name}.jsonl"), "-o", self.path(f"zst/{name}.jsonl.zst")],
                               check=True)
            wrappings.append("zst")
        for wrapping in wrappings:
            with self.subTest(wrapping):
                self.prepare(wrapping, "-o", "out_" + wrapping, *common)
                self.assertEqual((self.tokens("out_" + wrapping), self.tokens("out_" + wrapping, "val")), expected)
        self.prepare("a.jsonl", "b.jsonl", "-o", "h5", "--format", "h5", *common)
        self.assertTrue(os.path.exists(self.path("h5/val_000000.h5")))
        self.prepare("--verify", "h5")

    def test_a_validation_set_shorter_than_a_sequence_is_named(self):
        with open(os.path.join(self.folder, "short.jsonl"), "w") as file:
            file.write('{"text": "a few words"}\n' * 200)
        done = self.prepare("short.jsonl", "-o", "short", "--val_fraction", "0.05")
        self.assertRegex(done.stderr, r"warning: the validation set has only \d+ tokens, and a sequence of GPT-2 needs 1025, ")

    def test_order_and_duplicates(self):
        texts = stories(400)
        self.write("a.txt", "\n<|endoftext|>\n".join(texts))
        self.write("b.jsonl", as_lines(texts + texts[:50] + texts))
        self.prepare("--input", "a.txt", "--output", "order", "--no-shuffle", "--val_fraction", "0")
        self.prepare("--input", "a.txt", "--output", "shuffled", "--val_fraction", "0")
        order, shuffled = self.documents("order"), self.documents("shuffled")
        self.assertNotEqual(order, shuffled)
        self.assertEqual(sorted(order), sorted(shuffled))
        done = self.prepare("b.jsonl", "-o", "once", "--deduplicate", "--val_fraction", "0.1")
        self.assertIn("450 duplicates left out", done.stdout)
        self.assertEqual(sorted(self.documents("once") + self.documents("once", "val")), sorted(order))
        done = subprocess.run(["bash", "-c", '"$0" - --input_format txt -o piped --no-shuffle --val_fraction 0 < a.txt',
                               PREPARE], cwd=self.folder, env=self.environment, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.documents("piped"), order)


class Interrupted(Case):
    def setUp(self):
        super().setUp()
        self.write("p.parquet", "\n".join(stories(25000, seed=3)))
        self.write("a.txt", "\n<|endoftext|>\n".join(stories(25000)))
        self.write("b.jsonl.gz", gzip.compress(as_lines(stories(25000, seed=2)).encode(), 1))
        self.command = ["p.parquet", "a.txt", "b.jsonl.gz", "--dataset", "set", "--val_fraction", "0.01", "--shard_tokens", "500000",
                        "--memory", "1", "--journal_seconds", "0", "-j", "2"]
        begin = time.monotonic()
        self.prepare(*self.command, "-o", "whole")
        self.seconds = time.monotonic() - begin
        self.journaled = 0

    def start(self, *more):
        return subprocess.Popen([PREPARE, *self.command, "-o", "out", *more], cwd=self.folder, env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def wait_for_journal(self, running):
        """Until it has been written by this process."""
        def written():
            journal = self.path("out/.prepare/journal")
            return os.stat(journal).st_mtime_ns if os.path.exists(journal) else 0
        before = self.journaled
        while written() == before and running.poll() is None:
            time.sleep(0.005)
        self.journaled = written()

    def test_killed_at_any_moment_it_ends_with_the_same_bytes(self):
        chance = random.Random(7)
        running = self.start()
        self.wait_for_journal(running)
        running.kill()
        running.communicate()
        self.assertEqual(running.returncode, -signal.SIGKILL)
        for _ in range(9):
            running = self.start()
            try:
                running.communicate(timeout=chance.uniform(0.05, 0.6) * self.seconds)
            except subprocess.TimeoutExpired:
                running.kill()
                running.communicate()
            if running.returncode == 0:
                break
            self.assertFalse([name for name in os.listdir(self.path("out")) if name.endswith(".bin")] and
                             not os.path.exists(self.path("out/.prepare/journal")))
        if running.returncode != 0:
            self.assertTrue(os.path.exists(self.path("out/.prepare/journal")))
            self.prepare(*self.command, "-o", "out")
        self.assert_same("whole", "out")

    def test_signals_stop_it_and_it_says_how_to_go_on(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            running = self.start()
            self.wait_for_journal(running)
            if number == signal.SIGINT:  # Ctrl-C reaches what it has started, too
                os.killpg(running.pid, number)
            else:
                running.send_signal(number)
            out, err = running.communicate(timeout=120)
            self.assertEqual(running.returncode, 75, out + err)
            self.assertIn("stopped; to resume:\n", out)
            self.assertEqual(os.listdir(self.path("out")), [".prepare"])
            self.journaled = os.stat(self.path("out/.prepare/journal")).st_mtime_ns
        again = subprocess.run(["bash", "-c", out.splitlines()[-1]], cwd=self.folder, env=self.environment,
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assert_same("whole", "out")

    def test_only_one_at_a_time_and_only_the_same_order(self):
        running = self.start()
        self.wait_for_journal(running)
        running.send_signal(signal.SIGSTOP)
        self.refused(*self.command, "-o", "out", code=2, says=[f"process {running.pid} on", "--output"])
        running.kill()
        running.communicate()
        self.refused(*self.command, "-o", "out", "--seed", "9", code=2, says=["seed was 1337, is 9", "--overwrite"])
        self.refused(*self.command[1:], "-o", "out", code=2, says=["p.parquet is not among the inputs any more"])
        self.refused(*TRAIN, "--train_data", "out/train_*.bin", code=3, says=["no file matches"], program=TRAINER)
        self.refused(*TRAIN, "--dataset", "out", "--data_dir", ".", code=3, says="is not finished", program=TRAINER)
        self.prepare(*self.command, "-o", "out")
        self.assert_same("whole", "out")


class EveryCall(Case):
    """Killed, or refused by the disk, at one call after the other that touches the output folder."""

    def setUp(self):
        super().setUp()
        if not SHIM:
            self.skipTest("no shim: a build with sanitizers")
        self.write("a.jsonl", as_lines(stories(300)))
        self.command = ["a.jsonl", "-o", "out", "--dataset", "set", "--shard_tokens", "8000", "--val_fraction", "0.1",
                        "--journal_seconds", "0", "--memory", "1"]
        self.prepare(*self.command)
        os.rename(self.path("out"), self.path("whole"))
        self.prepare("a.jsonl", "-o", "out", "--shard_tokens", "3000")  # more shards than the new set has
        os.rename(self.path("out"), self.path("old"))

    def strike(self, at, action):
        """The old set, then one run that is struck."""
        shutil.rmtree(self.path("out"), ignore_errors=True)
        shutil.copytree(self.path("old"), self.path("out"))
        environment = {**self.environment, "LD_PRELOAD": SHIM, "FAULTS": f"out|*|{at}|1|{action}",
                       "FAULTS_LOG": self.path("calls")}
        return subprocess.run([PREPARE, *self.command, "--overwrite"], cwd=self.folder, env=environment, text=True,
                              capture_output=True, timeout=60)

    def struck_everywhere(self, action):
        self.assertEqual(self.strike(0, action).returncode, 0)
        with open(self.path("calls")) as file:
            calls = len(file.readlines())
        self.assertGreater(calls, 100)
        for at in [*range(2, calls - 30, calls // 6), *range(calls - 30, calls, 4)]:
            with self.subTest(at=at, of=calls):
                yield self.strike(at, action)
                self.follow_up()

    def follow_up(self):
        """Whatever is there is whole, or no trainer takes it; and the same command ends as if nothing had been."""
        done = subprocess.run([PREPARE, "--verify", "out"], cwd=self.folder, env=self.environment, capture_output=True)
        if done.returncode != 0:
            self.refused(*TRAIN, "--dataset", "out", "--data_dir", ".", code=3, says="", program=TRAINER)
        again = subprocess.run([PREPARE, *self.command], cwd=self.folder, env=self.environment, capture_output=True,
                               text=True)
        if again.returncode == 2:  # it was struck before the first journal, or when all was done
            self.assertIn("exists already", again.stderr)
            self.assertEqual(done.returncode, 0)
        else:
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assert_same("whole", "out")

    def test_kills(self):
        for done in self.struck_everywhere("die"):
            self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)

    def test_a_disk_that_fills_up(self):
        for done in self.struck_everywhere("ENOSPC"):
            self.assertIn(done.returncode, (0, 8), done.stderr)
            self.assertRegex(done.stderr, r"\A(error: [^\n]*\n)?\Z")


class Refusals(Case):
    def test_broken_inputs_leave_nothing(self):
        text = as_lines(stories(3000)).encode()
        packed = gzip.compress(text)
        self.write("good.jsonl", text)
        self.write("cut.jsonl.gz", packed[:len(packed) // 2])
        self.write("no_end.jsonl.gz", packed[:-4])
        self.write("bits.jsonl.gz", packed[:-2000] + bytes(1000) + packed[-1000:])
        self.write("plain.jsonl.gz", text)
        self.write("empty.jsonl.gz", b"")
        self.write("behind.jsonl.gz", packed + b"something else")
        self.write("number.jsonl", b'{"text": 5}\n')
        self.write("half.jsonl", text[:-20])
        self.write("broken.parquet", "one\nBREAK\ntwo\n")
        self.write("killer.parquet", "one\nDIE\n")
        self.write("blank.txt", "")
        cases = {
            "cut.jsonl.gz": "cut.jsonl.gz is damaged: its compressed stream is cut short",
            "no_end.jsonl.gz": "no_end.jsonl.gz is damaged: its compressed stream is cut short",
            "bits.jsonl.gz": "bits.jsonl.gz is damaged: ",
            "plain.jsonl.gz": "plain.jsonl.gz is damaged: incorrect header check",
            "empty.jsonl.gz": "empty.jsonl.gz is damaged: ",
            "behind.jsonl.gz": "behind.jsonl.gz is damaged: incorrect header check",
            "number.jsonl": 'number.jsonl:1 has no string in a field "text"',
            "half.jsonl": "half.jsonl:3000 is not a JSON object",
            "broken.parquet": "broken.parquet: Corrupt snappy compressed data.",
            "killer.parquet": "killer.parquet: its converter exited with 137",
            "missing.jsonl": "cannot open missing.jsonl: No such file",
            "nowhere/*.jsonl": "no file matches nowhere/*.jsonl",
        }
        if shutil.which("zstd"):
            subprocess.run(["zstd", "-q", self.path("good.jsonl"), "-o", self.path("good.jsonl.zst")], check=True)
            with open(self.path("good.jsonl.zst"), "rb") as file:
                packed = file.read()
            self.write("cut.jsonl.zst", packed[:len(packed) // 2])
            self.write("plain.jsonl.zst", text)
            cases["cut.jsonl.zst"] = "cut.jsonl.zst is damaged: its compressed stream is cut short"
            cases["plain.jsonl.zst"] = "plain.jsonl.zst is damaged: Unknown frame descriptor"
        for name, words in cases.items():
            with self.subTest(name):
                self.refused("good.jsonl", name, "-o", "out", code=3, says=words, leaves="out")
        self.refused("blank.txt", "-o", "out", code=3, says="no text in blank.txt", leaves="out")
        lines = stories(3000)
        for word, words in (("BREAK", "Corrupt snappy compressed data."), ("DIE", "its converter exited with 137")):
            self.write("late.parquet", "\n".join([*lines[:2000], word, *lines[2000:]]))
            for threads in ("1", "16"):
                self.refused("late.parquet", "-o", "out", "-j", threads, code=3, says="late.parquet: " + words, leaves="out")

    def test_wrong_flags(self):
        self.write("a.jsonl", as_lines(stories(10)))
        self.write("a.zip", "")
        cases = {
            (): "no input given",
            ("a.jsonl", "--dataset", "../elsewhere"): "takes a name, not a path",
            ("a.jsonl", "-o", "out", "--val_fraction", "nan"): "--val_fraction",
            ("a.jsonl",): "error: no output given: use --dataset NAME or --output FOLDER\n",
            ("--dataset", "fineweb"): "one of fineweb-edu, fineweb-edu-100B, openwebtext and tinyshakespeare",
            ("a.jsonl", "-o", "out", "--from", "x"): "--from",
            ("a.jsonl", "-o", "out", "--deduplicate", "--no-shuffle"): "give one of the two",
            ("a.jsonl", "-o", "out.bin"): "--output out --format bin",
            ("a.zip", "-o", "out"): "the name of a.zip does not give its format",
            ("a.jsonl", "-o", "out", "--format", "zip"): "--format",
            ("a.jsonl", "-o", "out", "--val_fraction", "2"): "--val_fraction",
            ("a.jsonl", "-o", "out", "--val_fraction", "1"): "leaves no document to train on",
            ("a.jsonl", "-o", "out", "--no_such_flag"): "--no_such_flag",
            ("-", "-o", "out"): "--input_format txt or jsonl",
        }
        for arguments, words in cases.items():
            with self.subTest(arguments):
                self.refused(*arguments, code=2, says=words, leaves="out")
        self.assertNotIn("validation set", self.prepare("a.jsonl", "-o", "no_val", "--val_fraction", "0").stderr)
        self.assertEqual([name for name in os.listdir(self.path("no_val")) if name.startswith("val_")], [])
        done = self.prepare("a.jsonl", "-o", "out")
        self.assertIn("no validation set: 10 documents are too few for --val_fraction 0.01 (give a larger one", done.stderr)
        self.refused("a.jsonl", "-o", "out", code=2, says="out/train_000000.bin exists already")

    def test_few_documents_give_their_tail_for_validation(self):
        self.write("book1.txt", " ".join(stories(300)))
        self.write("book2.txt", " ".join(stories(300, seed=2)))
        done = self.prepare("book1.txt", "book2.txt", "--dataset", "books")
        train, val = self.tokens("data/books"), self.tokens("data/books", "val")
        self.assertEqual(len(val), 1025)
        self.assertIn("note: 2 documents are too few for --val_fraction 0.01: the last 1025 tokens of the set are the "
                      "validation set\n", done.stdout)
        self.assertIn(f"{len(train)} tokens for training, 1025 for validation", done.stdout)
        self.prepare("book1.txt", "book2.txt", "-o", "all", "--val_fraction", "0")
        self.assertEqual(train + val, self.tokens("all"))
        self.prepare("--verify", "data/books")

    def test_text_that_is_no_text(self):
        text = "\n".join(stories(20))
        files = {"latin.txt": (text.encode("latin1", "replace"), "not valid UTF-8 (if it is Latin-1: iconv -f LATIN1"),
                 "utf16.txt": (text.encode("utf-16"), "a UTF-16 byte-order mark"),
                 "nul.txt": (text.encode() + b"\0", "(below 0.1%) NUL (remove them: tr -d"),
                 "mark.txt": (b"\xef\xbb\xbf" + text.encode(), "a UTF-8 byte-order mark (remove it: sed")}
        for name, (content, words) in files.items():
            with self.subTest(name):
                self.write(name, content)
                self.assertIn(f"warning: {name}: ", self.prepare(name, "-o", "out", "--overwrite").stderr)
                self.assertIn(words, self.prepare(name, "-o", "out", "--overwrite").stderr)
                self.refused(name, "-o", "strict", "--strict", code=3, says=[name, "or leave --strict out"], leaves="strict")
        self.write("unix.txt", text)
        self.write("dos.txt", text.replace("\n", "\r\n"))
        self.assertNotIn("CRLF", self.prepare("unix.txt", "-o", "unix", "--strict").stdout)
        done = self.prepare("dos.txt", "-o", "dos", "--strict")
        self.assertIn("note: dos.txt: 19 line ends changed from CRLF to LF\n", done.stdout)
        self.assertEqual(self.tokens("dos"), self.tokens("unix"))

    def test_a_disk_that_is_full(self):
        self.write("a.jsonl", as_lines(stories(20000)))

        def small_files():
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

        done = self.prepare("a.jsonl", "-o", "out", code=8, preexec_fn=small_files)
        self.assertRegex(done.stderr, r"\Aerror: cannot write out/\.prepare/[^\n]*free some disk space[^\n]*\n\Z")
        self.assertFalse(os.path.exists(self.path("out")) and [n for n in os.listdir(self.path("out")) if n[0] != "."])
        self.prepare("a.jsonl", "-o", "out")
        self.prepare("--verify", "out")

    def test_what_others_have_put_into_the_folder_stays(self):
        self.write("a.txt", "some text\n")
        foreign = {"out/dataset.json": '{"mine": 1}', "out2/.prepare/notes.txt": "mine", "out3/.prepare/train_me/x": "mine",
                   "out4/.prepare/journal_of_my_life.txt": "mine"}
        for name, content in foreign.items():
            self.write(name, content)
        self.refused("a.txt", "-o", "out", code=2, says=["out/dataset.json exists, and it is not a manifest", "--overwrite"])
        self.refused("a.txt", "-o", "out2", code=2, says="out2/.prepare/notes.txt is not a file of bin/prepare_data")
        self.refused("a.txt", "-o", "out3", "--overwrite", code=2, says="out3/.prepare/train_me")
        self.refused("a.txt", "-o", "out4", "--overwrite", code=2, says="out4/.prepare/journal_of_my_life.txt")
        for name, content in foreign.items():
            with open(self.path(name)) as file:
                self.assertEqual(file.read(), content)
        self.prepare("a.txt", "-o", "out", "--overwrite", "--val_fraction", "0")
        os.remove(self.path("out/train_000000.bin"))  # our own manifest needs no flag
        self.prepare("a.txt", "-o", "out", "--val_fraction", "0")

    def test_an_output_that_cannot_be_written(self):
        self.write("a.jsonl", as_lines(stories(10)))
        self.write("file", "")
        self.refused("a.jsonl", "-o", "file/out", code=8, says="file/out")
        self.refused("a.jsonl", "-o", "/proc/nothing", code=8, says="/proc/nothing")


class Trained(Case):
    def test_the_trainer_takes_it_and_refuses_what_was_changed(self):
        self.write("a.jsonl", as_lines(stories(3000)))
        self.write("b.jsonl", as_lines(stories(3000, seed=3)))
        for name in ("a", "b"):
            self.prepare(f"{name}.jsonl", "--dataset", name, "--shard_tokens", "50000", "--val_fraction", "0.1")
        done = self.run_program(TRAINER, *TRAIN, "--dataset", "a", "--run_name", "first")
        self.assertIn("data/a/train_*.bin", done.stdout)
        self.assertIn("data/a/val_*.bin", done.stdout)

        first, second = self.path("data/a/train_000000.bin"), self.path("data/b/train_000000.bin")
        shutil.copy(first, self.path("kept"))
        shutil.copy(second, first)  # as many bytes, other tokens
        self.refused(*TRAIN, "--dataset", "a", code=3, program=TRAINER,
                     says="data/a/train_000000.bin is not the shard that dataset.json lists")
        self.refused("--verify", "data/a", code=3, says="train_000000.bin")
        shutil.copy(self.path("kept"), first)
        with open(first, "r+b") as file:  # a bit in the middle: only the full check reads it
            file.seek(60000)
            byte = file.read(1)[0]
            file.seek(60000)
            file.write(bytes([byte ^ 1]))
        self.refused("--verify", "data/a", code=3, says="data/a/train_000000.bin is damaged: its hash differs")
        shutil.copy(self.path("kept"), first)
        self.prepare("--verify", "data/a")

        with open(first, "r+b") as file:
            file.truncate(50000)
            file.seek(8)
            file.write(struct.pack("<i", (50000 - 1024) // 2))
        self.refused(*TRAIN, "--dataset", "a", code=3, program=TRAINER, says="has 50000 bytes, dataset.json says 101024")
        os.remove(first)
        self.refused(*TRAIN, "--dataset", "a", code=3, program=TRAINER,
                     says="data/a/train_000000.bin is missing, and dataset.json lists it")
        shutil.copy(self.path("kept"), first)
        shutil.copy(second, self.path("data/a/train_000099.bin"))
        self.refused(*TRAIN, "--dataset", "a", code=3, program=TRAINER, says="train_000099.bin does not belong")
        os.remove(self.path("data/a/train_000099.bin"))
        os.remove(self.path("data/a/dataset.json"))  # shards of any other maker
        self.run_program(TRAINER, *TRAIN, "--dataset", "a", "--run_name", "second")
        self.refused(*TRAIN, "--dataset", "c", code=3, program=TRAINER,
                     says=["there is no dataset c: no data/c/train_*.bin", "those in data: a, b"])


class Hub(http.server.BaseHTTPRequestHandler):
    """The hub's addresses for the files in `files`; `mischief` is what goes wrong, each once."""
    files, mischief, asked = {}, [], []
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", headers=(), length=None):
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        Hub.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if self.path.startswith("/api/datasets/HuggingFaceFW/fineweb-edu/tree/main/sample/10BT"):
            return self.list_files()
        name = self.path.split("/resolve/main/")[-1].lstrip("/")
        if name not in Hub.files:
            return self.answer(404, b"no such file")
        trouble = Hub.mischief.pop(0) if Hub.mischief else None
        if trouble in (429, 503):
            return self.answer(trouble, b"later", [("Retry-After", "0.1")] if trouble == 429 else [])
        body = Hub.files[name]
        begin = int(re.match(r"bytes=(\d+)-", self.headers["Range"])[1]) if self.headers.get("Range") else 0
        if begin >= len(body) > 0:
            return self.answer(416)
        if trouble == "whole":  # no ranges here
            begin = 0
        if trouble == "break":
            self.answer(206 if begin else 200, body[begin:begin + len(body) // 3], length=len(body) - begin)
            self.close_connection = True
            return None
        if trouble == "size":
            return self.answer(206 if begin else 200, body[begin:] + b"more")
        if trouble == "bits":
            body = body[:-5] + b"xxxxx"
        return self.answer(206 if begin else 200, body[begin:])

    def list_files(self):
        names = sorted(name for name in Hub.files if name.startswith("sample/"))
        page = int(re.search(r"cursor=(\d+)", self.path)[1]) if "cursor=" in self.path else 0
        entry = {"type": "file", "path": names[page], "size": len(Hub.files[names[page]]),
                 "lfs": {"oid": hashlib.sha256(Hub.files[names[page]]).hexdigest()}}
        directory = {"type": "directory", "path": "sample/10BT/more", "size": 0}
        link = [("Link", f'<{self.path.split("&")[0]}&cursor={page + 1}>; rel="next"')] if page + 1 < len(names) else []
        self.answer(200, json.dumps([directory, entry]).encode(), link)


class Downloads(Case):
    def setUp(self):
        super().setUp()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.mirror = f"http://127.0.0.1:{server.server_port}"
        Hub.files = {f"sample/10BT/00{i}_00000.parquet": "\n".join(stories(2000, seed=i)).encode() for i in range(3)}
        Hub.files["input.txt"] = "\n\n".join(stories(300)).encode()
        Hub.mischief, Hub.asked = [], []
        for name, content in Hub.files.items():
            self.write("local/" + name, content)
        self.prepare("--dataset", "fineweb-edu", "--from", "local", "-o", "expected")

    def check_made(self, *arguments):
        self.prepare("--dataset", "fineweb-edu", *arguments)
        self.assertEqual(self.tokens("data/fineweb-edu"), self.tokens("expected"))
        self.assertEqual(self.tokens("data/fineweb-edu", "val"), self.tokens("expected", "val"))
        self.assertEqual(sorted(os.listdir(self.path("data/fineweb-edu/download/sample/10BT"))),
                         [f"00{i}_00000.parquet" for i in range(3)])

    def test_a_server_with_bad_days(self):
        Hub.mischief = [None, "break", "break", 429, 503, "break", "whole"]
        self.environment["HF_TOKEN"] = "secret"
        self.check_made("--from", self.mirror)
        self.assertTrue([entry for entry in Hub.asked if entry[1]], "nothing was resumed")
        self.assertEqual({entry[2] for entry in Hub.asked}, {"Bearer secret"})
        self.refused("--dataset", "fineweb-edu", "--from", self.mirror, code=2, says="exists already")

    def test_what_was_downloaded_is_not_fetched_again(self):
        self.environment["HF_ENDPOINT"] = self.mirror
        self.write("data/fineweb-edu/download/sample/10BT/000_00000.parquet", Hub.files["sample/10BT/000_00000.parquet"])
        self.write("data/fineweb-edu/download/sample/10BT/001_00000.parquet.part",
                   Hub.files["sample/10BT/001_00000.parquet"][:1000])
        self.check_made()
        fetched = [(path.split("/")[-1], part) for path, part, _ in Hub.asked if "/resolve/" in path]
        self.assertEqual(fetched, [("001_00000.parquet", "bytes=1000-"), ("002_00000.parquet", None)])

    def test_wrong_files_are_refused(self):
        Hub.mischief = ["size"]
        self.refused("--dataset", "fineweb-edu", "--from", self.mirror, code=3, says="the list of files says")
        Hub.mischief = [None, "bits"]
        self.refused("--dataset", "fineweb-edu", "--from", self.mirror, code=3, says="001_00000.parquet did not arrive")
        self.assertEqual(sorted(os.listdir(self.path("data/fineweb-edu/download/sample/10BT"))), ["000_00000.parquet"])
        self.refused("--dataset", "openwebtext", "--from", self.mirror, code=3, says="answers 404")
        self.refused("--dataset", "openwebtext", "--from", "local", code=3, says="local holds no plain_text")
        self.check_made("--from", self.mirror)

    def test_no_network(self):
        with_nobody = http.server.HTTPServer(("127.0.0.1", 0), Hub)
        with_nobody.server_close()
        self.environment["HF_ENDPOINT"] = f"http://127.0.0.1:{with_nobody.server_port}"
        self.refused("--dataset", "fineweb-edu", code=3, says=["cannot reach 127.0.0.1", "Connection refused", "--from"])

    def test_tinyshakespeare(self):
        self.prepare("--dataset", "tinyshakespeare", "--from", self.mirror)
        self.assertEqual(len(self.documents("data/tinyshakespeare")), 270)
        self.assertEqual(len(self.documents("data/tinyshakespeare", "val")), 30)

    def test_a_download_can_be_stopped(self):
        Hub.mischief = [503, 503, 503, 503]
        running = subprocess.Popen([PREPARE, "--dataset", "fineweb-edu", "--from", self.mirror], cwd=self.folder,
                                   env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        while not Hub.asked and running.poll() is None:
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=120)
        self.assertEqual(running.returncode, 75, out + err)
        self.check_made("--from", self.mirror)


if __name__ == "__main__":
    PREPARE, TRAINER = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    SHIM = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].endswith(".so") else None
    TABLES = os.environ.get("GPT2_TOKENIZER") or os.path.join(ROOT, ".deps", "gpt2_bpe")
    if not os.path.exists(os.path.join(TABLES, "vocab.bpe")):
        print("skipped: no tokenizer tables")
        sys.exit(77)
    unittest.main(verbosity=1)
