#!/usr/bin/env python3
"""Runs ctest in a build folder and ends with the line `N passed, N failed, N skipped`.

    tools/run_tests.py BUILD_FOLDER [CTEST_OPTION...]

A test that exits with 77 lacks something on this machine (a GPU, torch) and counts as skipped. Exit 1 if any failed.
"""
import collections
import os
import subprocess
import sys
import xml.etree.ElementTree


def outcome(case):
    if case.get("status") == "run":
        return "passed"
    skipped = case.find("skipped")
    # ctest also writes <skipped> for a program that failed to start: count it as a failure.
    return "skipped" if skipped is not None and skipped.get("message", "").startswith("SKIP_") else "failed"


def last_line(output):
    lines = (output or "").strip().splitlines()
    return lines[-1] if lines else "skipped"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    report = os.path.join(os.path.abspath(sys.argv[1]), "tests.xml")
    if os.path.exists(report):
        os.remove(report)
    status = subprocess.run(["ctest", "--test-dir", sys.argv[1], "--output-on-failure", "--no-tests=error",
                             "--output-junit", report, *sys.argv[2:]]).returncode
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
    print(", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped")))
    sys.exit(1 if counts["failed"] or status else 0)


main()
