#!/usr/bin/env python3
"""The package of a build, unpacked elsewhere: it trains, its tools work, and no file of the source tree is opened.

    tests/test_package.py TRAIN_GPT2_FP8
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.dirname(os.path.abspath(sys.argv.pop(1)))
TOOL = os.path.join(ROOT, "tools", "make_package.sh")
TINY = ("--device cpu --model nano --layers 1 --heads 1 --channels 8 --seq_len 8 --batch_size 2 --target_batch_size 2 "
        "--max_steps 2 --eval_freq 0").split()


def make(*arguments):
    return subprocess.run([TOOL, BUILD, *arguments], capture_output=True, text=True, timeout=120)


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="test_package_")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.out = os.path.join(cls.temporary.name, "out")
        done = make("package", cls.out)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.printed = done.stdout
        (cls.archive,) = os.listdir(cls.out)
        elsewhere = os.path.join(cls.temporary.name, "elsewhere")
        os.makedirs(elsewhere)
        subprocess.run(["cmake", "-E", "tar", "xf", os.path.join(cls.out, cls.archive)], cwd=elsewhere, check=True)
        (name,) = os.listdir(elsewhere)
        cls.package = os.path.join(elsewhere, name)
        os.remove(os.path.join(cls.out, cls.archive))

    def run_in_package(self, *command):
        """In the package's folder and with nothing of this environment. Returns what was printed."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": self.temporary.name}
        for name in ("LD_LIBRARY_PATH", "ASAN_OPTIONS"):
            if name in os.environ:
                environment[name] = os.environ[name]
        done = subprocess.run(command, cwd=self.package, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def test_its_name_has_version_and_machine(self):
        with open(os.path.join(ROOT, "CMakeLists.txt")) as file:
            version = re.search(r"VERSION (\d+\.\d+\.\d+)", file.read())[1]
        self.assertEqual(self.archive, f"train_gpt2_fp8-{version}-{os.uname().machine}.tar.zst")
        self.assertIn(self.archive, self.printed)

    def test_it_has_programs_libraries_configs_documents_and_license(self):
        for path in ("train_gpt2_fp8", "bin/generate", "bin/plan", "lib/libgpt2.so", "lib/libgpt2_tools.so", "configs/nano.toml",
                     "docs/tools.md", "LICENSE", "README.md", "tools/parquet_to_jsonl.py"):
            self.assertTrue(os.path.exists(os.path.join(self.package, path)), path)
        for name in os.listdir(os.path.join(self.package, "lib")):
            self.assertTrue(name.startswith("libgpt2"), name)  # nothing of CUDA

    def test_its_readme_names_the_libraries(self):
        with open(os.path.join(self.package, "README.md")) as file:
            text = file.read()
        self.assertNotRegex(text, "[@%][A-Z_0-9]+[@%]")  # all filled in
        if shutil.which("dpkg-query"):
            self.assertRegex(text, r"apt-get install .*libhdf5.*libopenblas.*libpcre2-8-0")
        needed = subprocess.run(["objdump", "-p", os.path.join(self.package, "lib", "libgpt2.so")], capture_output=True, text=True).stdout
        self.assertEqual("libcublasLt" in needed, "libcublasLt" in text)
        self.assertEqual("libcublasLt" in needed, "LD_LIBRARY_PATH" in text)

    def test_it_searches_next_to_itself(self):
        for path, first in (("train_gpt2_fp8", "$ORIGIN/lib"), ("bin/generate", "$ORIGIN/../lib"), ("lib/libgpt2.so", "$ORIGIN"),
                            ("lib/libgpt2_tools.so", "$ORIGIN")):
            text = subprocess.run(["objdump", "-p", os.path.join(self.package, path)], capture_output=True, text=True).stdout
            folders = re.search(r"R(?:UN)?PATH +(\S+)", text)[1].split(":")
            self.assertEqual(folders[0], first, path)
            self.assertFalse([folder for folder in folders if folder.startswith((ROOT, BUILD))], path)

    def test_it_trains_and_its_tools_work(self):
        out = self.run_in_package("./train_gpt2_fp8", *TINY, "--run_name", "here")
        self.assertIn("step 2", re.sub(" +", " ", out))
        self.assertIn("here", self.run_in_package("bin/ckpt", "list"))
        self.assertIn("memory", self.run_in_package("./train_gpt2_fp8", *TINY, "--plan"))
        if os.path.isdir(os.path.join(self.package, ".deps", "gpt2_bpe")):
            with open(os.path.join(self.package, "text.txt"), "w") as file:
                file.write("A small text.\n" * 50)
            self.assertIn("tokens", self.run_in_package("bin/prepare_data", "text.txt", "--output", "tokens"))

    def test_it_opens_no_file_of_the_source_tree(self):
        log = os.path.join(self.temporary.name, "opened")
        trace = ["strace", "-f", "-qq", "-e", "trace=%file", "-o", log]
        if not shutil.which("strace") or subprocess.run([*trace, "true"], capture_output=True).returncode:
            self.skipTest("no strace, or not allowed to trace")
        for command in (["./train_gpt2_fp8", *TINY], ["bin/ckpt", "list"]):
            self.run_in_package(*trace, *command)
            with open(log) as file:
                touched = [line for line in file if f'"{ROOT}/' in line or f'"{BUILD}/' in line]
            self.assertEqual(touched, [], command)

    def test_install_makes_a_link_that_works(self):
        prefix = os.path.join(self.temporary.name, "prefix")
        done = make("install", prefix)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(os.path.join(prefix, "bin", "train_gpt2_fp8"), done.stdout)
        out = self.run_in_package(os.path.join(prefix, "bin", "train_gpt2_fp8"), "--version")
        self.assertIn("train_gpt2_fp8", out)
        self.assertTrue(os.access(os.path.join(prefix, "lib", "train_gpt2_fp8", "bin", "generate"), os.X_OK))

    def test_wrong_arguments_are_one_line(self):
        for arguments in (["package"], ["pack", self.out]):
            done = make(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"^error: .*\(hint: .*\)\n$")


if __name__ == "__main__":
    unittest.main(verbosity=1)
