#!/usr/bin/env python3
"""docs/walk.md names files that exist, with line counts that hold within a tenth. `--write` updates the counts."""
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "walk.md")
ROW = re.compile(r"^\| (\S+\.(?:h|cpp|cu|cuh)) \| (\d+) \|", re.MULTILINE)


def lines_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return sum(1 for _ in file)


def page():
    with open(PAGE, encoding="utf-8") as file:
        return file.read()


class Walk(unittest.TestCase):
    def test_files_and_their_lines(self):
        rows = ROW.findall(page())
        self.assertGreater(len(rows), 25)
        for path, lines in rows:
            with self.subTest(path):
                self.assertLessEqual(abs(int(lines) - lines_of(path)), 0.1 * lines_of(path) + 2, "run tests/test_walk.py --write")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        new = ROW.sub(lambda row: f"| {row[1]} | {lines_of(row[1])} |", page())
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(new)
    else:
        unittest.main()
