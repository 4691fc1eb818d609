#!/usr/bin/env python3
"""What every program says when it cannot print. Usage: test_standard_output.py PROGRAM..."""
import os
import subprocess
import sys
import unittest

PROGRAMS = [os.path.abspath(path) for path in sys.argv[1:]]
del sys.argv[1:]


class StandardOutput(unittest.TestCase):
    def run_into(self, output, *command):
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60)
        return done.returncode, done.stderr

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_a_full_disk_is_an_error(self):
        said = "error: cannot write standard output (free some disk space, or redirect it elsewhere)\n"
        with open("/dev/full", "w") as full:
            for program in PROGRAMS:
                self.assertEqual(self.run_into(full, program, "--help"), (8, said), program)
            trainer, ckpt = PROGRAMS[:2]
            self.assertEqual(self.run_into(full, trainer, "--print_config"), (8, said))
            self.assertEqual(self.run_into(full, ckpt, "list", "--quick"), (8, said))
            self.assertEqual(self.run_into(full, ckpt, "list", "nowhere")[0], 4)  # the first thing that went wrong

    def test_a_reader_that_has_gone_is_none(self):
        for program in PROGRAMS:
            reading, writing = os.pipe()
            os.close(reading)
            self.assertEqual(self.run_into(writing, program, "--help"), (0, ""), program)
            os.close(writing)


if __name__ == "__main__":
    unittest.main()
