#!/usr/bin/env python3
"""What the targets of the Makefile would build, by `make -n`: the least that the command needs."""
import os
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def commands(*words):
    """The lines that `make WORDS` would run in a fresh clone (RELEASE: as if nothing were built)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS")) and name not in ("ARCHS", "NATIVE", "ARGS", "PREFIX")}
    done = subprocess.run(["make", "-n", "--no-print-directory", "RELEASE=build/nothing", *words], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


class Makefile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        gpu = subprocess.run([os.path.join(ROOT, "tools", "gpu_archs.sh")], capture_output=True, text=True).stdout.strip()
        cls.preset = "release" if gpu else "cpu-only"

    def test_run_builds_the_trainer_alone(self):
        self.assertIn(f"cmake --build --preset {self.preset} --target train_gpt2_fp8\n", commands("run"))

    def test_a_plan_needs_a_tool(self):
        self.assertIn("--target programs\n", commands("run", "ARGS=--use_fp8 --plan"))

    def test_test_builds_what_this_machine_can_run(self):
        self.assertIn(f"cmake --build --preset {self.preset} --target all rooms\n", commands("test"))
        out = commands("test", "ARCHS=all")
        self.assertIn("--preset release '-DARCHS=all'", out)
        self.assertIn("cmake --build --preset release --target all rooms\n", out)

    def test_test_prints_its_plan_before_it_builds(self):
        out = commands("test")
        self.assertLess(out.index("run_tests.py --begin"), out.index("cmake --build"))

    def test_continuous_integration_compiles_for_two_kinds_of_gpu(self):
        with open(os.path.join(ROOT, ".ci", "run")) as file:
            text = file.read()
        for line in ("check make check-format", "check make tidy", "check make asan", "check make test 'ARCHS=80-real;90a-real'"):
            self.assertIn(line, text)

    def test_package_and_install(self):
        self.assertIn("make_package.sh build/package package build\n", commands("package"))
        self.assertIn("install /opt/gpt2\n", commands("install", "PREFIX=/opt/gpt2"))


if __name__ == "__main__":
    unittest.main(verbosity=1)
