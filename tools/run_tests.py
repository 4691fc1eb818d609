#!/usr/bin/env python3
"""Runs ctest in a build folder, one test per core, and ends with the line `N passed, N failed, N skipped`.

    tools/run_tests.py BUILD_FOLDER [CTEST_OPTION...]
    tools/run_tests.py --begin BUILD_FOLDER             before the build: prints what follows and how long it took last time

A test that exits with 77 lacks something on this machine (a GPU, torch) and counts as skipped. Exit 1 if any failed.
BUILD_FOLDER/test_times.json keeps the seconds of the latest whole build and test.
"""
import collections
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree

MOST_JOBS = 4  # many tests start several processes themselves


def outcome(case):
    if case.get("status") == "run":
        return "passed"
    skipped = case.find("skipped")
    # ctest also writes <skipped> for a program that failed to start: count it as a failure.
    return "skipped" if skipped is not None and skipped.get("message", "").startswith("SKIP_") else "failed"


def last_line(output):
    lines = (output or "").strip().splitlines()
    return lines[-1] if lines else "skipped"


def duration(seconds):
    return f"{round(seconds)} s" if seconds < 100 else f"{round(seconds / 60)} min"


def jobs():
    return min(len(os.sched_getaffinity(0)), MOST_JOBS)


class Times:
    """Seconds of the latest build ("build") and tests ("test"), and when the build in progress began ("began")."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "test_times.json")
        try:
            with open(self.path) as file:
                self.values = {key: float(value) for key, value in json.load(file).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            self.values = {}

    def keep(self, **values):
        self.values.update(values)
        with open(self.path, "w") as file:
            json.dump(self.values, file)

    def last(self):
        parts = [f"{duration(self.values[key])} to {key}" for key in ("build", "test") if key in self.values]
        return "last time: " + ", ".join(parts) if parts else "not timed here yet"


def begin(folder):
    times = Times(folder)
    found = subprocess.run(["ctest", "--test-dir", folder, "-N"], capture_output=True, text=True).stdout
    count = found.rpartition("Total Tests: ")[2].strip() or "the"
    at_once = "one at a time" if jobs() == 1 else f"{jobs()} in parallel"
    print(f"tests: builds in {folder}, then runs {count} tests, {at_once}; {times.last()}", flush=True)
    times.keep(began=time.time())


def main():
    if len(sys.argv) < 2 or (sys.argv[1] == "--begin" and len(sys.argv) != 3):
        sys.exit(__doc__)
    if sys.argv[1] == "--begin":
        return begin(sys.argv[2])
    folder, options = sys.argv[1], sys.argv[2:]
    report = os.path.join(os.path.abspath(folder), "tests.xml")
    if os.path.exists(report):
        os.remove(report)
    # Threads that wait for work sleep: a test next to this one needs the core.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
    start = time.time()
    status = subprocess.run(["ctest", "--test-dir", folder, "--output-on-failure", "--no-tests=error", f"-j{jobs()}",
                             "--output-junit", report, *options], env=environment).returncode
    if not os.path.exists(report):
        sys.exit("error: ctest wrote no report")

    counts = collections.Counter()
    reasons = collections.Counter()
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        counts[outcome(case)] += 1
        if outcome(case) == "skipped":
            reasons[last_line(case.findtext("system-out"))] += 1
    print()
    for reason, count in reasons.items():
        print(f"{count} x {reason}")
    times = Times(folder)
    began = times.values.pop("began", None)
    if began is not None and not options:  # the whole of `make test`
        times.keep(build=start - began, test=time.time() - start)
        print(f"{duration(start - began)} to build, {duration(time.time() - start)} to test")
    print(", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped")))
    sys.exit(1 if counts["failed"] or status else 0)


main()
