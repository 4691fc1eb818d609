#!/usr/bin/env python3
"""Prints one column of Parquet files as JSON lines, for bin/tokenize - --input_format jsonl.

    python3 tools/parquet_to_jsonl.py FILE... [--column text]

Needs the pyarrow package. Reads a few thousand rows at a time, so files of any size will do.
"""
import argparse
import json
import sys

import pyarrow.parquet


def main():
    parser = argparse.ArgumentParser(description="Parquet files to JSON lines on standard output.")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--column", default="text", help="which holds the documents (default: text)")
    options = parser.parse_args()
    for path in options.files:
        try:
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=4096, columns=[options.column]):
                sys.stdout.writelines(json.dumps({"text": text}) + "\n" for text in batch.column(0).to_pylist())
        except (OSError, pyarrow.ArrowInvalid, IndexError) as error:
            sys.exit(f"error: {path}: {error} (check the file and --column)")


if __name__ == "__main__":
    main()
