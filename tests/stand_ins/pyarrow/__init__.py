"""As much of pyarrow as tools/parquet_to_jsonl.py uses, for machines without it. A "Parquet" file here is a text of one
document a line, in the column `text`; at a line BREAK it is damaged, at a line DIE its reader is killed."""
import os
import signal
import types


class ArrowException(Exception):
    pass


class Column(list):
    def to_pylist(self):
        return self


class ParquetFile:
    def __init__(self, path):
        self.path = path
        self.schema_arrow = types.SimpleNamespace(names=["id", "text"])

    def iter_batches(self, batch_size, columns):
        with open(self.path) as lines:
            for line in lines.read().splitlines():
                if line == "BREAK":
                    raise ArrowException("Corrupt snappy compressed data.\nmore of it")
                if line == "DIE":
                    os.kill(os.getpid(), signal.SIGKILL)
                yield types.SimpleNamespace(column=lambda index, line=line: Column([line]))
