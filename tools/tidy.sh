#!/usr/bin/env bash
# Checks our C++ sources with clang-tidy, one process per core: tools/tidy.sh BUILD_FOLDER (for its compile_commands.json).
# Checks the sources that the build compiles as C++; a build without CUDA omits those that include CUDA headers.
# Omits tests: most findings there are doctest's macros.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
export clang_tidy
clang_tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || {
  echo "error: clang-tidy is not installed (hint: run tools/install_deps.sh test)" >&2
  exit 1
}

# As g++ compiles them, with its omp.h (after clang's own intrinsics).
options=(--quiet -p "$build" --extra-arg=-w # g++ reports warnings
  "--extra-arg=-idirafter$(dirname "$(g++ -print-file-name=include/omp.h)")")
sources=$(sed -n 's|^ *"file": "'"$PWD"'/\(.*\.cpp\)".*|\1|p' "$build/compile_commands.json" |
  grep -E '^(engine|kernels|tools)/' | sort)

# clang-tidy prints counts of suppressed findings in system headers to stderr: dropped.
if ! xargs -P "$(nproc)" -n 1 sh -c '"$clang_tidy" "$@" 2>/dev/null' sh "${options[@]}" <<<"$sources"; then
  echo "tidy: the lines above break .clang-tidy" >&2
  exit 1
fi
echo "tidy: done with $(wc -l <<<"$sources") files"
