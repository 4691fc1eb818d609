#!/usr/bin/env bash
# Formats our C++ and CUDA sources by .clang-format; --check lists the files that would change, and fails if any would.
# Prefers clang-format 14 (.deps/venv): other versions differ in details.
set -euo pipefail
cd "$(dirname "$0")/.."

# The wheel's binary: the script in bin/ contains the path of the tree, which may have moved.
clang_format=$(echo .deps/venv/lib/python3*/site-packages/clang_format/data/bin/clang-format)
[ -x "$clang_format" ] || clang_format=$(command -v clang-format) || {
  echo "error: clang-format is not installed (hint: run tools/install_deps.sh test)" >&2
  exit 1
}
case "${1:-}" in
  "") mode=(-i) ;;
  --check) mode=(--dry-run --Werror) ;;
  *)
    echo "error: unknown argument '$1' (hint: --check, or none to format the sources in place)" >&2
    exit 2
    ;;
esac

find train_gpt2_fp8.cu engine kernels tools tests -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' |
  sort | xargs "$clang_format" --style=file "${mode[@]}"
echo "format: done with $("$clang_format" --version)"
