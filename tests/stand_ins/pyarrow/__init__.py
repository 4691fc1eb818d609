"""As much of pyarrow as tools/parquet_to_jsonl.py uses, for machines without it. A "Parquet" file here is a text of one
document a line, in the column `text`, 300 lines a row group; at a line BREAK it is damaged, at a line DIE its reader is killed."""
import os
import signal
import types


ROW_GROUP = 300


class ArrowException(Exception):
    pass


class Column(list):
    def to_pylist(self):
        return self


class ParquetFile:
    def __init__(self, path):
        self.path = path
        self.schema_arrow = types.SimpleNamespace(names=["id", "text"])
        with open(path) as lines:
            self.lines = lines.read().splitlines()
        self.num_row_groups = -(-len(self.lines) // ROW_GROUP)

    def iter_batches(self, batch_size, row_groups, columns):
        for group in row_groups:
            for line in self.lines[group * ROW_GROUP:(group + 1) * ROW_GROUP]:
                if line == "BREAK":
                    raise ArrowException("Corrupt snappy compressed data.\nmore of it")
                if line == "DIE":
                    os.kill(os.getpid(), signal.SIGKILL)
                yield types.SimpleNamespace(column=lambda index, line=line: Column([line]))
