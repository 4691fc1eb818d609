#!/usr/bin/env bash
# Lays out our C++ and CUDA sources by .clang-format; --check only says which files would change, and fails if any would.
# Always clang-format 14 where it can be had (.deps/venv): other versions disagree with it in small things.
set -euo pipefail
cd "$(dirname "$0")/.."

# The wheel's own binary: the script beside python3 names the folder that it was made in, and the tree may have moved.
clang_format=$(echo .deps/venv/lib/python3*/site-packages/clang_format/data/bin/clang-format)
[ -x "$clang_format" ] || clang_format=$(command -v clang-format) || {
  echo "error: clang-format is not installed (hint: run tools/install_deps.sh test)" >&2
  exit 1
}
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)

find train_gpt2_fp8.cu engine kernels tools tests -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' |
  sort | xargs "$clang_format" --style=file "${mode[@]}"
echo "format: done with $("$clang_format" --version)"
