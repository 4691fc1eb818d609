#!/usr/bin/env python3
"""bin/prepare_data and Parquet files, with a stand-in for pyarrow. Usage: test_parquet.py PREPARE_DATA"""
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PREPARE_DATA = os.path.abspath(sys.argv.pop(1))
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONVERTER = os.path.join(ROOT, "tools", "parquet_to_jsonl.py")
STAND_INS = os.path.join(ROOT, "tests", "stand_ins")  # a pyarrow for this test


class Parquet(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_parquet_")
        self.addCleanup(shutil.rmtree, self.folder)
        tables = os.environ.get("GPT2_TOKENIZER") or os.path.join(ROOT, ".deps", "gpt2_bpe")
        if not os.path.exists(os.path.join(tables, "vocab.bpe")):
            self.skipTest("no tokenizer tables")
        os.makedirs(os.path.join(self.folder, "tools"))
        shutil.copy(CONVERTER, os.path.join(self.folder, "tools"))
        self.environment = {**os.environ, "PYTHONPATH": STAND_INS, "GPT2_TOKENIZER": tables}

    def write(self, name, content):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(content)

    def shell(self, script):
        return subprocess.run(["bash", "-c", script, PREPARE_DATA], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, timeout=60)

    def shards(self):
        folder = os.path.join(self.folder, "out")
        return sorted(os.listdir(folder)) if os.path.exists(folder) else []

    def test_a_good_file(self):
        self.write("a.parquet", "one\ntwo\n")
        self.write("b.parquet", "three\n")
        done = self.shell('"$0" a.parquet b.parquet --output out --no-shuffle --val_fraction 0')
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(os.path.join(self.folder, "out/train_000000.bin"), "rb") as file:
            tokens = struct.unpack("<6H", file.read()[1024:])
        self.assertEqual(tokens, (50256, 505, 50256, 11545, 50256, 15542))

    def test_what_goes_wrong_is_one_line_and_leaves_nothing(self):
        self.write("good.parquet", "one\ntwo\n")
        self.write("broken.parquet", "one\nBREAK\ntwo\n")
        self.write("killer.parquet", "one\nDIE\n")
        cases = {
            "broken.parquet": "error: broken.parquet: Corrupt snappy compressed data.\n",
            "killer.parquet": "error: killer.parquet: its converter exited with 137\n",
            "good.parquet --field content": 'error: good.parquet has no column "content", but id, text\n',
        }
        for arguments, message in cases.items():
            with self.subTest(arguments):
                done = self.shell(f'"$0" good.parquet {arguments} --output out --shard_tokens 1')
                self.assertEqual((done.returncode, done.stderr), (3, message))
                self.assertEqual(self.shards(), [])

    def test_no_script_of_the_working_folder_is_run(self):
        """A program that was copied out of its tree, in a folder that somebody else has prepared."""
        copy = os.path.join(self.folder, "programs", "bin", "prepare_data")
        os.makedirs(os.path.dirname(copy))
        shutil.copy(PREPARE_DATA, copy)
        libraries = os.path.join(os.path.dirname(os.path.dirname(PREPARE_DATA)), "lib")  # not in programs/lib: that would be a package
        trap = 'open("trapped", "w")\n'
        for folder in (".", "programs"):  # where it is started, and a folder above the program
            os.makedirs(os.path.join(self.folder, folder, "tools"), exist_ok=True)
            self.write(os.path.join(folder, "tools", "parquet_to_jsonl.py"), trap)
        self.write("a.parquet", "one\n")
        command = [copy, "a.parquet", "--output", "out", "--val_fraction", "0"]
        run = {"cwd": self.folder, "env": {**self.environment, "LD_LIBRARY_PATH": libraries}, "capture_output": True, "text": True, "timeout": 60}
        done = subprocess.run(command, **run)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"\Aerror: tools/parquet_to_jsonl.py, which reads Parquet files, was not found [^\n]*\n\Z")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "trapped")))
        os.makedirs(os.path.join(self.folder, "programs", "bin", "tools"))  # beside the program, it is its own
        shutil.copy(CONVERTER, os.path.join(self.folder, "programs", "bin", "tools"))
        done = subprocess.run(command, **run)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_tree_is_known_by_more_than_its_place(self):
        """TREE/build/PRESET/PROGRAM: a folder named build is no proof, a moved tree still runs."""
        tree = os.path.join(self.folder, "tree")
        os.makedirs(os.path.join(tree, "build", "preset"))
        os.makedirs(os.path.join(tree, "tools"))
        shutil.copy(PREPARE_DATA, os.path.join(tree, "build", "preset"))
        os.symlink(os.path.join(os.path.dirname(os.path.dirname(PREPARE_DATA)), "lib"), os.path.join(tree, "build", "lib"))
        shutil.copy(CONVERTER, os.path.join(tree, "tools"))
        self.write("a.parquet", "one\n")
        command = "tree/build/preset/prepare_data a.parquet --output out --val_fraction 0"
        self.assertEqual(self.shell(command).returncode, 3)
        self.write("tree/CMakeLists.txt", "")
        os.chmod(tree, 0o777)
        done = self.shell(command)
        self.assertEqual(done.returncode, 3)
        self.assertIn("was not found", done.stderr)
        os.chmod(tree, 0o755)
        done = self.shell(command)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_pipe_that_breaks_is_not_taken_for_the_whole(self):
        self.write("broken.parquet", "one\nBREAK\ntwo\n")
        done = self.shell('python3 tools/parquet_to_jsonl.py broken.parquet 2>/dev/null |'
                          ' "$0" - --input_format jsonl --skip_bad_lines --output out')
        self.assertEqual((done.returncode, done.stderr), (3, "error: broken.parquet: Corrupt snappy compressed data.\n"))
        self.assertEqual(self.shards(), [])

    def test_no_pyarrow(self):
        self.write("pyarrow.py", "raise ImportError('as if it were not there')\n")
        self.environment["PYTHONPATH"] = self.folder
        self.write("a.parquet", "one\n")
        done = self.shell('"$0" a.parquet --output out')
        self.assertEqual(done.returncode, 3)
        self.assertRegex(done.stderr, r"\Aerror: Parquet files need the pyarrow package: [^\n]*\(tools/install_deps.sh parquet [^\n]*\)\n\Z")
        self.assertEqual(self.shell("python3 tools/parquet_to_jsonl.py a.parquet").returncode, 3)


if __name__ == "__main__":
    unittest.main(verbosity=1)
