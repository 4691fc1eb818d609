#!/usr/bin/env python3
"""libgpt2.so holds code for each GPU that it was built for. Usage: test_architectures.py LIBRARY "80-real 89-real ..."|none
cuobjdump lists the code where the toolkit has it; elsewhere the fat binaries are read here. Exit 77: built without CUDA."""
import os
import re
import shutil
import struct
import subprocess
import sys
import unittest

LIBRARY, ARCHS = sys.argv.pop(1), sys.argv.pop(1)
ALL = ["80-real", "89-real", "90a-real", "100-real", "120-real", "100-virtual"]  # ARCHS=all
PTX, ELF = 1, 2
CUOBJDUMP = shutil.which("cuobjdump", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # a fat binary's header: then the size of its entries


def read_fat_binaries():
    """{(kind, architecture)} of every entry. An entry: kind, version, size of its header, size of its code, ..., architecture."""
    with open(LIBRARY, "rb") as file:
        data = file.read()
    found = set()
    start = data.find(MAGIC)
    while start >= 0:
        at, end = start + 16, start + 16 + struct.unpack_from("<Q", data, start + 8)[0]
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            found.add((kind, struct.unpack_from("<I", data, at + 28)[0]))
            at += header + size
        start = data.find(MAGIC, end)
    return found


def list_with_cuobjdump():
    found = set()
    for kind, flag, pattern in ((ELF, "--list-elf", r"\.sm_(\d+)a?\."), (PTX, "--list-ptx", r"\.sm_(\d+)a?\.")):
        text = subprocess.run([CUOBJDUMP, flag, LIBRARY], capture_output=True, text=True).stdout
        found |= {(kind, int(number)) for number in re.findall(pattern, text)}
    return found


class Architectures(unittest.TestCase):
    def test_code_for_each(self):
        listed = list_with_cuobjdump() if CUOBJDUMP else read_fat_binaries()
        wanted = {(ELF if kind == "real" else PTX, int(number)) for number, kind in re.findall(r"(\d+)a?-(real|virtual)", ARCHS)}
        self.assertTrue(wanted)
        self.assertEqual(wanted - listed, set())
        self.assertIn((ELF, 90), listed)  # kernels/sm90, in every build

    def test_all_is_ampere_to_blackwell_and_what_comes(self):
        with open("cmake/find_cuda.cmake", encoding="utf-8") as file:
            self.assertIn(f"set(ALL_ARCHS {' '.join(ALL)})", file.read())


if __name__ == "__main__":
    if ARCHS == "none":
        print("skipped: built without CUDA")
        sys.exit(77)
    unittest.main()
