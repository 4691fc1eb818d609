"""Reads what dump_gradients writes."""
import subprocess
import sys
from pathlib import Path

import numpy as np


def write_dump(command, folder):
    """Runs dump_gradients (program and options); ends this process with 77, as it did, where it lacks a device."""
    status = subprocess.run([command[0], str(folder), *command[1:]]).returncode
    if status == 77:
        sys.exit(77)
    if status != 0:
        sys.exit(f"{' '.join(command)} exited with {status}")


def read_dump(folder):
    """Notes by key, and arrays by name, which stay on disk until they are looked at."""
    notes, arrays, offset = {}, {}, 0
    values = np.memmap(Path(folder) / "values.bin", dtype=np.uint8, mode="r")
    for line in (Path(folder) / "manifest.txt").read_text().splitlines():
        key, separator, value = line.partition(" = ")
        if separator:
            notes[key] = value
            continue
        name, kind, *shape = line.split()
        shape = [int(extent) for extent in shape]
        size = 4 * int(np.prod(shape))
        arrays[name] = values[offset:offset + size].view("<" + kind).reshape(shape)
        offset += size
    assert offset == len(values), "the dump is longer than its manifest says"
    return notes, arrays
