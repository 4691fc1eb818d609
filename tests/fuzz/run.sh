#!/usr/bin/env bash
# Fuzzes the readers with libFuzzer under the address and undefined-behavior sanitizers, and ends with a table.
#
#   tests/fuzz/run.sh BUILD_FOLDER [EXECUTIONS [EXECUTIONS_OF_HDF5 [TARGET...]]]      10000000 and 100000 by default
#
# Needs Debian's clang-19 and libclang-rt-19-dev (tools/install_deps.sh faults). Builds only the sources that the targets
# need, into BUILD_FOLDER/fuzz. What a run finds lies in BUILD_FOLDER/fuzz/findings; new inputs that reach more code in
# BUILD_FOLDER/fuzz/corpus. Exit 1 if anything was found; 77 without the compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$(realpath -m "$1")/fuzz
executions=${2:-10000000}
executions_hdf5=${3:-100000}
shift $(($# < 3 ? $# : 3))
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=($(cd tests/fuzz && ls fuzz_*.cpp | sed 's/^fuzz_//; s/\.cpp$//'))

compiler=$(command -v clang++-19) || { echo "skipped: no clang++-19 (tools/install_deps.sh faults)"; exit 77; }
compiler="$(command -v ccache || true) $compiler"
flags="-std=c++20 -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
  -DGPT2_VERSION=\"fuzz\" -I. $(pkg-config --cflags hdf5 2>/dev/null || echo -I/usr/include/hdf5/serial)"
libraries="$(pkg-config --libs hdf5 2>/dev/null || echo -L/usr/lib/x86_64-linux-gnu/hdf5/serial -lhdf5) -lpcre2-8 -lsodium -lpthread"
[ ! -e /usr/include/xxhash.h ] || libraries="$libraries -lxxhash"

# ---- build: the rooms that readers need as one archive, of which a target links what it uses ----

mkdir -p "$build/objects" "$build/findings" "$build/corpus"
compile() { # SOURCE COVERAGE
  local object="$build/objects/${1//\//_}.o"
  [ "$object" -nt "$1" ] && [ -z "$(find engine tests/fuzz -name '*.h' -newer "$object" -print -quit)" ] && return 0
  echo "  $1"
  $compiler $flags $2 -c "$1" -o "$object"
}
export -f compile
export build compiler flags
ls engine/{base,system,data,model,network,rendezvous,ranks,hdf5,text,logging,checkpoint}/*.cpp tools/common/verify_data.cpp tools/report/*.cpp |
  xargs -P "$(nproc)" -I{} bash -c 'compile {} -fsanitize=fuzzer-no-link'
printf 'tests/fuzz/fuzz_%s.cpp\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'compile {} -fsanitize=fuzzer-no-link'
rm -f "$build/libreaders.a"
ar qc "$build/libreaders.a" "$build"/objects/engine_*.o "$build"/objects/tools_*.o
for target in "${targets[@]}"; do
  $compiler $flags -fsanitize=fuzzer "$build/objects/tests_fuzz_fuzz_$target.cpp.o" "$build/libreaders.a" $libraries \
    -o "$build/fuzz_$target"
done

# ---- run ----

export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1
symbolizer=$(ls /usr/bin/llvm-symbolizer* /usr/lib/llvm-*/bin/llvm-symbolizer 2>/dev/null | tail -n 1 || true)
[ -z "$symbolizer" ] || export ASAN_SYMBOLIZER_PATH=$symbolizer UBSAN_OPTIONS=$UBSAN_OPTIONS:external_symbolizer_path=$symbolizer
status=0
table=$(printf '%-12s %12s %8s %8s %9s %9s' target executions edges features seconds findings)
for target in "${targets[@]}"; do
  count=$executions
  longest=16384 # bytes of an input
  case $target in
    checkpoint | shard_hdf5) count=$executions_hdf5 ;; # each writes its files
    frames) longest=2048 ;;                            # a stranger's frame has 1 KB
  esac
  mkdir -p "$build/corpus/$target"
  options="-runs=$count -max_len=$longest -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=64 -print_final_stats=1 -verbosity=1
    -artifact_prefix=$build/findings/$target-"
  [ ! -e "tests/fuzz/$target.dict" ] || options="$options -dict=tests/fuzz/$target.dict"
  begin=$(date +%s)
  "$build/fuzz_$target" $options "$build/corpus/$target" "tests/fuzz/corpus/$target" >"$build/$target.log" 2>&1 &
  process=$!
  if wait $process; then
    found=0
  else
    found=1 status=1
    tail -n 60 "$build/$target.log" | grep -v '^#' | head -n 40
  fi
  rm -rf "/dev/shm/gpt2_fuzz_$process" "/tmp/gpt2_fuzz_$process" # where a crash left its inputs
  coverage=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$build/$target.log" | tail -n 1)
  done_runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$build/$target.log" | tail -n 1)
  table+=$'\n'$(printf '%-12s %12s %8s %8s %9s %9s' "$target" "${done_runs:-?}" "$(cut -d' ' -f2 <<<"$coverage")" \
    "$(cut -d' ' -f4 <<<"$coverage")" $(($(date +%s) - begin)) $found)
  echo "$target: ${done_runs:-?} executions, $coverage"
done
echo
echo "$table"
exit $status
