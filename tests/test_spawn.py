#!/usr/bin/env python3
"""The launcher behind --gpus: exit codes, signals, and that nothing is left behind. Drives tests/spawn_ranks.cpp."""
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
LIMIT = 60  # seconds, for what takes milliseconds on an idle machine


def is_alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Ranks(unittest.TestCase):
    def start(self, *actions, **variables):
        process = subprocess.Popen([PROGRAM, *actions], env={**os.environ, **variables}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_for_lines(self, process, count):
        """Process ids of the ranks, from what each says once it is there."""
        lines = [process.stdout.readline() for _ in range(count)]
        return [int(re.search(r"process (\d+)", line)[1]) for line in lines]

    def check_gone(self, processes):
        deadline = time.monotonic() + LIMIT
        while any(map(is_alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse([process for process in processes if is_alive(process)])

    def exit_code(self, *actions):
        return self.start(*actions).wait(timeout=LIMIT)

    def test_exit_codes(self):
        self.assertEqual(self.exit_code("exit=0", "exit=0"), 0)
        self.assertEqual(self.exit_code("exit=0", "exit=75"), 75)
        self.assertEqual(self.exit_code("exit=75", "exit=7", "exit=0"), 7)
        self.assertEqual(self.exit_code("exit=7", "exit=3", "exit=75", "exit=7"), 3)
        self.assertEqual(self.exit_code("exit=1"), 1)
        self.assertEqual(self.exit_code("exit=0", "signal=9"), 7)
        self.assertEqual(self.exit_code("signal=11", "exit=5"), 5)

    def test_they_find_each_other(self):
        process = self.start("group", "group", "group")
        out, _ = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 0, out)
        for rank in range(3):
            self.assertRegex(out, rf"rank {rank} of 3 process \d+: local {rank} of 3, 3 together")

    def test_they_meet_within_a_second(self):
        self.check_meeting_time(lambda: self.start("group", "group", "group").communicate(timeout=LIMIT)[0], 3)

    def test_torchruns_ranks_meet_within_a_second(self):
        def run():
            words = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": socket.gethostname(), "MASTER_PORT": "29500",
                     "TORCHELASTIC_RUN_ID": f"test{os.getpid()}"}
            ranks = []
            for rank in range(3):
                time.sleep(0.2)
                ranks.append(self.start("group", RANK=str(rank), LOCAL_RANK=str(rank), **words))
            return "".join(rank.communicate(timeout=LIMIT)[0] for rank in ranks)
        self.check_meeting_time(run, 3)

    def check_meeting_time(self, run, ranks):
        """From the start of the last one; a busy machine gets three tries."""
        times = []
        for _ in range(3):
            out = run()
            found = re.findall(r"began ([\d.]+) met ([\d.]+)", out)
            self.assertEqual(len(found), ranks, out)
            times.append(max(float(met) for _, met in found) - max(float(began) for began, _ in found))
            if times[-1] < 1:
                return
        self.fail(f"seconds from the start of the last rank: {times}")

    def test_the_ranks_alone_know_the_token(self):
        def environment(process):
            with open(f"/proc/{process}/environ") as file:
                return dict(line.split("=", 1) for line in file.read().split("\0") if "=" in line)

        def variables(**given):
            process = self.start("sleep", "sleep", **given)
            ranks = [environment(rank) for rank in self.wait_for_lines(process, 2)]
            self.assertEqual(ranks[0]["GPT2_JOB"], ranks[1]["GPT2_JOB"])
            self.assertEqual(ranks[0].get("GPT2_JOB_TOKEN"), ranks[1].get("GPT2_JOB_TOKEN"))
            process.kill()
            process.wait()
            return ranks[0]

        first, second = variables(), variables(GPT2_JOB_TOKEN="")
        for one in first, second:
            self.assertRegex(one["GPT2_JOB_TOKEN"], r"^[0-9a-f]{64}$")
        self.assertNotEqual(first["GPT2_JOB_TOKEN"], second["GPT2_JOB_TOKEN"])
        self.assertEqual(variables(GPT2_JOB_TOKEN="given by the user")["GPT2_JOB_TOKEN"], "given by the user")
        self.assertNotIn("GPT2_JOB_TOKEN", variables(GPT2_JOB_TOKEN_FILE="/some/file"))

    def test_signals_are_passed_on(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            process = self.start("catch=1", "catch=1")
            ranks = self.wait_for_lines(process, 2)
            process.send_signal(number)
            out, _ = process.communicate(timeout=LIMIT)
            self.assertEqual(process.returncode, 75)
            self.assertEqual(out.count("saw 1\n"), 2, out)
            self.check_gone(ranks)

    def test_a_terminal_says_it_once(self):
        """Ctrl-C comes to the whole group of the terminal; the ranks hear it once, and a second one as well."""
        for times in (1, 2):
            launcher, terminal = pty.fork()
            if launcher == 0:
                os.execv(PROGRAM, [PROGRAM, f"catch={times}", f"catch={times}"])
            seen = b""
            pressed = 0
            deadline = time.monotonic() + LIMIT
            while time.monotonic() < deadline:
                try:
                    seen += os.read(terminal, 4096)
                except OSError:  # the last one has closed it
                    break
                while seen.count(b"ready") == 2 and pressed < times:
                    os.write(terminal, b"\x03")
                    pressed += 1
                    time.sleep(0.1)
            _, status = os.waitpid(launcher, 0)
            os.close(terminal)
            self.assertEqual(os.waitstatus_to_exitcode(status), 75, seen)
            self.assertEqual(seen.count(b"saw %d" % times), 2, seen)

    def test_ctrl_z_stops_the_ranks_too(self):
        process = self.start("catch=1")
        (rank,) = self.wait_for_lines(process, 1)
        process.send_signal(signal.SIGTSTP)

        def state(one):
            with open(f"/proc/{one}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0]

        deadline = time.monotonic() + LIMIT
        while {state(rank), state(process.pid)} != {"T"} and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual({state(rank), state(process.pid)}, {"T"})
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=LIMIT)
        self.assertIn("saw 1\n", out)

    def test_none_outlives_a_killed_launcher(self):
        process = self.start("sleep", "catch=9", "sleep")
        ranks = self.wait_for_lines(process, 3)
        process.kill()
        process.wait()
        self.check_gone(ranks)

    def test_none_waits_for_ever_after_an_error(self):
        process = self.start("sleep", "exit=3", "catch=9")
        ranks = self.wait_for_lines(process, 3)
        start = time.monotonic()
        self.assertEqual(process.wait(timeout=LIMIT), 3)
        self.assertGreater(time.monotonic() - start, 1)  # they had their time to end by themselves
        self.check_gone(ranks)


if __name__ == "__main__":
    unittest.main(verbosity=1)
