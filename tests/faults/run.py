#!/usr/bin/env python3
"""Faults put into real runs until nothing breaks (CPU, a tiny model).
Usage: run.py BUILD [--full] [--count N] [--seed N] [TEST...]

`make faults` runs all with --full; `make test` a reduced number of cases of the same code. docs/notes/reliability.md has the figures.
"""
import argparse
import sys

try:
    import h5py  # noqa: F401
except ImportError:
    print("skipped: no h5py")
    sys.exit(77)

import harness
import crashes  # noqa: F401: each registers its tests
import kills  # noqa: F401
import write_errors  # noqa: F401
import resumes  # noqa: F401
import signals  # noqa: F401
import damage  # noqa: F401
import surroundings  # noqa: F401
import memory  # noqa: F401


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("build")
    arguments.add_argument("tests", nargs="*")
    arguments.add_argument("--full", action="store_true")
    arguments.add_argument("--count", type=int, help="cases, where a test has a count and not a list")
    arguments.add_argument("--seed", type=int, default=1)
    asked = arguments.parse_intermixed_args()
    bench = harness.Bench(asked.build, asked.full, asked.seed)
    sys.exit(0 if harness.run_tests(bench, asked.tests, asked.count) else 1)


main()
