#!/usr/bin/env bash
# Checks our C++ sources by .clang-tidy, one process a core: tools/tidy.sh BUILD_FOLDER (for its compile_commands.json).
# The sources are those that the build compiles as C++: a build without CUDA leaves out what reads CUDA's headers.
# Tests are left out: doctest's macros are most of what would be found there.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
export clang_tidy
clang_tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || {
  echo "error: clang-tidy is not installed (hint: run tools/install_deps.sh test)" >&2
  exit 1
}

# As g++ compiles them, with its omp.h (after clang's own intrinsics).
options=(--quiet -p "$build" --extra-arg=-w # warnings are g++'s to give
  "--extra-arg=-idirafter$(dirname "$(g++ -print-file-name=include/omp.h)")")
sources=$(sed -n 's|^ *"file": "'"$PWD"'/\(.*\.cpp\)".*|\1|p' "$build/compile_commands.json" |
  grep -E '^(engine|kernels|tools)/' | sort)

# clang-tidy counts on stderr what it suppressed in other people's headers; only what it found in ours is printed.
if ! xargs -P "$(nproc)" -n 1 sh -c '"$clang_tidy" "$@" 2>/dev/null' sh "${options[@]}" <<<"$sources"; then
  echo "tidy: the lines above break .clang-tidy" >&2
  exit 1
fi
echo "tidy: done with $(wc -l <<<"$sources") files"
