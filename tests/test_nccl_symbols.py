#!/usr/bin/env python3
"""Every function that the program looks up in NCCL is in a real libnccl.so.2: it is opened at run time, by names that no linker
checks. Usage: test_nccl_symbols.py. Exit 77: there is no NCCL here."""
import ctypes
import glob
import os
import re
import sys
import sysconfig
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADER = os.path.join(ROOT, "engine", "nccl", "library.h")


def open_nccl():
    places = ["libnccl.so.2", *glob.glob("/usr/local/cuda*/lib*/libnccl.so.2"),
              *glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib", "libnccl.so.2"))]
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    print("skipped: no libnccl.so.2 here")
    sys.exit(77)


class Symbols(unittest.TestCase):
    def test_every_function_is_there(self):
        with open(HEADER) as header:
            names = re.findall(r'find\(\w+, "([^"]+)"\)', header.read())
        self.assertGreaterEqual(len(names), 16)
        library = open_nccl()
        self.assertEqual([name for name in names if not hasattr(library, name)], [])
        version = ctypes.c_int()
        self.assertEqual(library.ncclGetVersion(ctypes.byref(version)), 0)
        self.assertGreaterEqual(version.value, 21400)  # the layout of the configuration is that of 2.14


if __name__ == "__main__":
    unittest.main()
