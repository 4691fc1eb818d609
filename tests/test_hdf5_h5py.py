#!/usr/bin/env python3
"""Writes files with h5py, as its defaults and its versions have them, and lets our reader read them.

    test_hdf5_h5py.py path/to/test_hdf5_reader path/to/test_shard

Exit 77: h5py is not installed.
"""
import os
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy
except ImportError as error:
    print(f"skipped: {error} (apt install python3-h5py)")
    sys.exit(77)

TOKENS = numpy.arange(1000, dtype="<u2")


def write(path, layout, **settings):
    with h5py.File(path, "w", **settings) as file:
        file.create_dataset("tokens", data=TOKENS, **layout)
        file.attrs["version"] = 1
        file.attrs["source"] = "of any length"
        file.attrs["shuffled"] = True
        file.create_group("group/inner")["matrix"] = numpy.arange(12, dtype="<f4").reshape(3, 4)
        file["group"].attrs["number"] = 2.5


with tempfile.TemporaryDirectory() as folder:
    newer = {"libver": ("v108", "latest")}  # the default of HDF5 2.0
    write(os.path.join(folder, "default.h5"), {})
    write(os.path.join(folder, "chunked.h5"), {"chunks": True})
    write(os.path.join(folder, "resizable.h5"), {"maxshape": (None,), "chunks": (64,)})
    write(os.path.join(folder, "newer.h5"), {}, **newer)
    write(os.path.join(folder, "newer_chunked.h5"), {"chunks": (64,)}, **newer)
    for program, case in zip(sys.argv[1:], ("files of h5py", "shards of h5py")):
        result = subprocess.run([program, f"-tc={case}"], env={**os.environ, "GPT2_H5PY_FILES": folder},
                                capture_output=True, text=True)
        if result.returncode != 0 or "1 passed" not in result.stdout:
            sys.exit(result.stdout + result.stderr)
print("passed")
