#!/usr/bin/env python3
"""Ranks that mpirun starts: on one node they find each other by themselves, on several by a word over MPI. Drives
tests/spawn_ranks.cpp; skipped without OpenMPI."""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
LIBRARY = os.path.join(os.path.dirname(os.path.dirname(PROGRAM)), "lib")
MPIRUN = shutil.which("mpirun")
# As if each rank were on a node of its own.
ELSEWHERE = "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0"


class Mpirun(unittest.TestCase):
    def run_ranks(self, *command, **variables):
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "ASAN_OPTIONS": "detect_leaks=0"}  # OpenMPI's own
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "MASTER_", "GPT2_"))}
        return subprocess.run([MPIRUN, "--oversubscribe", "-np", "3", *command], env={**environment, **root, **variables},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)

    def check_together(self, run, local):
        """All of them, within a second of the start of the last one; a busy machine gets three tries."""
        times = []
        while len(times) < 3 and not (times and times[-1] < 1):
            done = run()
            self.assertEqual(done.returncode, 0, done.stdout)
            for rank in range(3):
                self.assertRegex(done.stdout, rf"rank {rank} of 3 process \d+: local {local[rank]}, 3 together")
            found = re.findall(r"began ([\d.]+) met ([\d.]+)", done.stdout)
            times.append(max(float(met) for _, met in found) - max(float(began) for began, _ in found))
        self.assertLess(times[-1], 1, times)

    def test_one_node(self):
        self.check_together(lambda: self.run_ranks(PROGRAM, "group"), ["0 of 3", "1 of 3", "2 of 3"])

    def test_several_nodes(self):
        if not os.path.exists(os.path.join(LIBRARY, "libgpt2_mpi.so")):
            self.skipTest("built without MPI")
        # No token and no shared folder: the secret comes over MPI too.
        self.check_together(lambda: self.run_ranks("sh", "-c", f"{ELSEWHERE} exec {PROGRAM} group"), ["0 of 1"] * 3)

    def test_several_nodes_and_a_given_address(self):
        for address, token in (("localhost", {}), (socket.gethostname(), {"GPT2_JOB_TOKEN": os.urandom(32).hex()})):
            self.check_together(lambda: self.run_ranks("sh", "-c", f"{ELSEWHERE} exec {PROGRAM} group", MASTER_ADDR=address, **token),
                                ["0 of 1"] * 3)
        done = self.run_ranks("sh", "-c", f"{ELSEWHERE} exec {PROGRAM} group", MASTER_ADDR=socket.gethostname())
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("GPT2_JOB_TOKEN", done.stdout)

    def test_several_nodes_without_the_module(self):
        with tempfile.TemporaryDirectory(prefix="test_mpi_") as folder:
            os.makedirs(os.path.join(folder, "lib"))
            os.makedirs(os.path.join(folder, "bin"))
            shutil.copy(os.path.join(LIBRARY, "libgpt2.so"), os.path.join(folder, "lib"))
            program = shutil.copy(PROGRAM, os.path.join(folder, "bin"))
            done = self.run_ranks("sh", "-c", f"{ELSEWHERE} LD_LIBRARY_PATH={folder}/lib exec {program} group")
        self.assertEqual(done.returncode, 7, done.stdout)
        self.assertIn("libgpt2_mpi.so is missing", done.stdout)
        self.assertIn("MASTER_ADDR", done.stdout)
        self.assertIn("--master", done.stdout)

    def test_the_program_itself_does_not_link_mpi(self):
        linked = subprocess.run(["ldd", os.path.join(LIBRARY, "libgpt2.so")], stdout=subprocess.PIPE, text=True).stdout
        self.assertNotIn("libmpi", linked)


if __name__ == "__main__":
    if MPIRUN is None:
        print("skipped: there is no mpirun")
        sys.exit(77)
    unittest.main(verbosity=1)
