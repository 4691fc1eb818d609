#!/usr/bin/env python3
"""tools/run_tests.py: runs tests in parallel, counts them, and prints how long they took last time."""
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOL = os.path.join(ROOT, "tools", "run_tests.py")
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(few NONE)
enable_testing()
add_test(NAME sleeps COMMAND sleep 1)
add_test(NAME sleeps_too COMMAND sleep 1)
add_test(NAME lacks_something COMMAND sh -c "echo no GPU; exit 77")
set_tests_properties(lacks_something PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME waits_asleep COMMAND sh -c "[ $OMP_WAIT_POLICY = passive ]")
"""


def run(*arguments):
    return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, timeout=60)


class RunTests(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="test_run_tests_")
        self.addCleanup(self.folder.cleanup)
        with open(os.path.join(self.folder.name, "CMakeLists.txt"), "w") as file:
            file.write(CMAKE)
        self.build = os.path.join(self.folder.name, "build")
        subprocess.run(["cmake", "-S", self.folder.name, "-B", self.build, "-G", "Ninja"], check=True, capture_output=True)

    def test_it_prints_what_it_will_do_and_how_long_it_took(self):
        first = run("--begin", self.build)
        self.assertRegex(first.stdout, r"^tests: builds in .*/build, then runs 4 tests, .*; not timed here yet\n$")
        time.sleep(1)
        done = run(self.build)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"1 x no GPU\n\d s to build, \d+ s to test\n3 passed, 0 failed, 1 skipped\n$")
        self.assertRegex(run("--begin", self.build).stdout, r"last time: \d s to build, \d+ s to test\n$")

    def test_a_part_of_the_tests_is_not_timed(self):
        run("--begin", self.build)
        done = run(self.build, "-R", "waits_asleep")
        self.assertTrue(done.stdout.endswith("1 passed, 0 failed, 0 skipped\n"), done.stdout)
        self.assertIn("not timed here yet", run("--begin", self.build).stdout)

    def test_a_damaged_file_of_times_is_replaced(self):
        with open(os.path.join(self.build, "test_times.json"), "w") as file:
            file.write("[1]")
        self.assertIn("not timed here yet", run("--begin", self.build).stdout)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one core")
    def test_tests_run_in_parallel(self):
        lines = run(self.build, "-R", "sleeps").stdout.splitlines()
        starts = [i for i, line in enumerate(lines) if re.match(r"\s*Start ", line)]
        ends = [i for i, line in enumerate(lines) if " Passed " in line]
        self.assertLess(max(starts), min(ends), lines)


if __name__ == "__main__":
    unittest.main(verbosity=1)
