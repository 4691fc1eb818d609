#!/usr/bin/env python3
"""The Dockerfile's RUN lines, without Docker: they call what there is, and what is copied before a line is all that it needs."""
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def lines_of(name):
    with open(os.path.join(ROOT, name)) as file:
        text = re.sub(r"(?m)^\s*#.*\n", "", file.read())
    return [line.split(None, 1) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def words_of(instruction):
    return [shlex.split(words) for name, words in lines_of("Dockerfile") if name == instruction]


class Dockerfile(unittest.TestCase):
    def test_it_calls_install_deps_and_make_and_nothing_else(self):
        self.assertEqual([words[0] for words in words_of("RUN")], ["tools/install_deps.sh", "make"])
        self.assertLessEqual({name for name, _ in lines_of("Dockerfile")}, {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT"})

    def test_packages_install_from_what_is_copied_before(self):
        """With a Debian that has them all: every command of apt and dpkg says so."""
        if not os.path.isdir(os.path.join(ROOT, ".deps", "gpt2_bpe")):
            self.skipTest("no .deps")
        with tempfile.TemporaryDirectory(prefix="test_dockerfile_") as folder:
            for name, words in lines_of("Dockerfile"):
                *sources, target = shlex.split(words)
                if name == "RUN":
                    break
                if name == "COPY":
                    os.makedirs(os.path.join(folder, target), exist_ok=True)
                    for source in sources:
                        shutil.copy(os.path.join(ROOT, source), os.path.join(folder, target))
            os.symlink(os.path.join(ROOT, ".deps"), os.path.join(folder, ".deps"))
            os.makedirs(os.path.join(folder, "path"))
            for command in ("apt-get", "dpkg-query"):
                with open(os.path.join(folder, "path", command), "w") as file:
                    file.write("#!/bin/sh\nprintf installed\n")
                os.chmod(file.name, 0o755)
            done = subprocess.run(words_of("RUN")[0], cwd=folder, capture_output=True, text=True, timeout=60,
                                  env={**os.environ, "PATH": os.path.join(folder, "path") + ":/usr/bin:/bin"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_make_has_the_target_and_the_variable(self):
        words = words_of("RUN")[1]
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("-DGPT2_NATIVE=OFF", done.stdout)
        self.assertIn("train_gpt2_fp8", done.stdout)
        self.assertIn("make", subprocess.run(["grep", "^readonly build_packages", "-A3", "tools/install_deps.sh"], cwd=ROOT,
                                             capture_output=True, text=True).stdout.replace("cmake", ""))  # a bare image has none

    def test_the_entry_is_what_make_builds(self):
        self.assertEqual(words_of("ENTRYPOINT"), [["[./train_gpt2_fp8]"]])

    def test_what_git_ignores_stays_out(self):
        kept_out = [words[0].rstrip("/") for words in lines_of(".dockerignore")]
        self.assertIn(".git", kept_out)
        for (pattern, *_) in lines_of(".gitignore"):
            if pattern.startswith("!"):
                continue
            folder = pattern.strip("/").split("/")[0]
            self.assertTrue(folder in kept_out or "**/" + folder in kept_out, pattern)
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
        needed = {name.split("/")[0] for name in tracked} - set(kept_out)
        if tracked:
            self.assertLessEqual({"CMakeLists.txt", "Makefile", "engine", "kernels", "tests", "tools", "cmake"}, needed)


if __name__ == "__main__":
    unittest.main(verbosity=1)
