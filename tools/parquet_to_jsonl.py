#!/usr/bin/env python3
"""Prints one column of Parquet files as JSON lines. bin/prepare_data runs it for .parquet inputs.

    python3 tools/parquet_to_jsonl.py FILE... [--column text]

With --part I --of N several processes split a file: process I prints row groups I, I + N, ..., each followed by the byte 1E, which no
line contains. bin/prepare_data interleaves the groups in their order.

Needs pyarrow in the current Python or in .deps/venv. Reads 4096 rows at a time; memory does not grow with the file. A failure prints
one line to standard error and exits with 3. In a pipe the failure is also the last line of the output: bin/prepare_data does not see
the exit code and must not take a partial output for a complete one.
"""
import argparse
import json
import os
import stat
import sys

VENV = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".deps", "venv")
END_OF_GROUP = "\x1e"  # as in tools/prepare_data/parquet.cpp
FAILURE_KEY = "parquet_to_jsonl_failed"  # as in tools/prepare_data/parquet.cpp


def fail(message):
    if stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
        print(json.dumps({FAILURE_KEY: message}), flush=True)
    print("error: " + message, file=sys.stderr)
    sys.exit(3)


def import_parquet():
    try:
        import pyarrow.parquet
        return pyarrow
    except ImportError as error:
        python = os.path.join(VENV, "bin", "python3")
        if os.path.realpath(sys.prefix) != os.path.realpath(VENV) and os.access(python, os.X_OK):
            os.execv(python, [python, *sys.argv])
        fail(f"Parquet files need the pyarrow package: {error} (tools/install_deps.sh parquet installs it)")


def main():
    parser = argparse.ArgumentParser(description="Parquet files to JSON lines on standard output.")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--column", default="text", help="column with the documents (default: text)")
    parser.add_argument("--part", type=int, default=0, metavar="I", help="row groups I, I + N, ... (default: all)")
    parser.add_argument("--of", type=int, default=0, metavar="N")
    options = parser.parse_args()
    pyarrow = import_parquet()
    for path in options.files:
        try:
            file = pyarrow.parquet.ParquetFile(path)
            if options.column not in file.schema_arrow.names:
                fail(f"{path} has no column \"{options.column}\", but {', '.join(file.schema_arrow.names)}")
            for group in range(options.part, file.num_row_groups, options.of or 1):
                for batch in file.iter_batches(batch_size=4096, row_groups=[group], columns=[options.column]):
                    documents = (text for text in batch.column(0).to_pylist() if text)
                    lines = "".join(json.dumps({options.column: text}) + "\n" for text in documents)
                    sys.stdout.write(lines)  # the whole group: we run ahead while another converter is read
                if options.of:
                    sys.stdout.write(END_OF_GROUP)
        except BrokenPipeError:
            raise
        except (OSError, pyarrow.ArrowException) as error:
            fail(f"{path}: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has exited and printed the reason
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
