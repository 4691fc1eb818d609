#!/usr/bin/env python3
"""Prints the size of the tree: lines that the trainer links, and code lines of everything but tests.

    tools/count_lines.py [FOLDER]        a checkout, by default this one
"""
import os
import re
import subprocess
import sys

CODE = re.compile(r"\.(cpp|h|cu|cuh|js|css|html|py|sh|cmake)$|^Makefile$|^tools/wandb_sync$|CMakeLists\.txt$")
COMMENT = {"py": "#", "sh": "#", "cmake": "#", "txt": "#", "": "#"}


def files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if CODE.search(name)]


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def code_lines(name, text):
    """Without blank lines and comments."""
    mark = COMMENT.get(os.path.splitext(name)[1].lstrip("."), "//")
    if mark == "//":
        text = re.sub(r"/\*.*?\*/|<!--.*?-->", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    return sum(1 for line in lines if line and not line.startswith(mark))


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    trainer = tree = 0
    for name in files(root):
        if name.startswith(("tests/", "docs/")):
            continue
        text = read(root, name)
        tree += code_lines(name, text)
        if name.startswith(("engine/", "kernels/")) or name == "train_gpt2_fp8.cu":
            trainer += text.count("\n")
    print(f"{trainer:6d} lines in engine/, kernels/ and train_gpt2_fp8.cu")
    print(f"{tree:6d} lines of code in the tree without tests (no blank lines, no comments)")


main()
