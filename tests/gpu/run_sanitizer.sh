#!/usr/bin/env bash
# Runs the GPU suites on small shapes under NVIDIA's compute-sanitizer and prints how much each of its tools reported.
#
#   run_sanitizer.sh [PROGRAM_DIR]   holds gpu_test_* (default: build/release/tests)
#
# environment: TOOLS="memcheck racecheck initcheck synccheck", SUITES="gelu attention ..." (default: all there are),
#   JOBS=8 runs at a time, LIMIT=150 seconds for one of them, LOGS=FOLDER keeps their output, SANITIZER=its path,
#   OPTIONS="..." more options for it, such as "--kernel-name kns=gpt2"
#
# Exit status: 0 nothing was reported, 1 something was, or a suite failed or took too long, 2 usage, 77 there is no
# compute-sanitizer, GPU or program here.
#
# memcheck looks at every kernel, at those of cuBLASLt and cuDNN too: a wrong pointer or size of ours shows in theirs.
# Calls that CUDA refuses are not reported, because some suites make them on purpose and all check what is returned.
# The other tools look at our kernels and CUB's: what cuBLASLt and cuDNN do inside is not ours to judge (racecheck reports
# cuBLASLt's own pipelines). Hence of the suites of matrix products they run the cases of our own kernels alone, and of the whole models, of which memcheck runs a few cases, none:
# initcheck would have to follow what the libraries write. (Buffers of the kernel suites start as NaN, which their checks
# find; what initcheck watches there is the scratch memory of the device.)
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
programs=${1:-$root/build/release/tests}
read -ra tools <<< "${TOOLS:-memcheck racecheck initcheck synccheck}"
read -ra suites <<< "${SUITES:-}"
jobs_at_once=${JOBS:-8}
limit=${LIMIT:-150}
model_cases='*every gradient*,*recomputation*,*leave the gradients right*'
own_kernels="*kernel of ours*,*Hopper's kernel*"

fail() { echo "run_sanitizer.sh: $*" >&2; exit 2; }
skip() { echo "skipped: $*"; exit 77; }

[ $# -le 1 ] || fail "usage: run_sanitizer.sh [PROGRAM_DIR]"
[ -d "$programs" ] || fail "there is no folder $programs"
for tool in "${tools[@]}"; do
  case $tool in
    memcheck | racecheck | initcheck | synccheck) ;;
    *) fail "TOOLS: '$tool' is none of memcheck, racecheck, initcheck, synccheck" ;;
  esac
done

sanitizer=${SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
[ -x "$sanitizer" ] || skip "no compute-sanitizer (it is part of the CUDA toolkit)"
if [ ${#suites[@]} = 0 ]; then
  for program in "$programs"/gpu_test_*; do
    [ ! -f "$program" ] || [ ! -x "$program" ] || suites+=("${program##*/gpu_test_}")
  done
fi
[ ${#suites[@]} -gt 0 ] || skip "no gpu_test_* in $programs (built without CUDA?)"
for suite in "${suites[@]}"; do
  [ -x "$programs/gpu_test_$suite" ] || fail "SUITES: there is no $programs/gpu_test_$suite"
done

logs=${LOGS:-$(mktemp -d)}
mkdir -p "$logs"
[ -n "${LOGS:-}" ] || trap 'rm -rf "$logs"' EXIT
export GPT2_TEST_SMALL=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

first=$programs/gpu_test_${suites[0]}
"$first" --count > "$logs/probe.log" 2>&1 || {
  [ $? = 77 ] || { cat "$logs/probe.log" >&2; fail "$first does not start"; }
  skip "no GPU"
}

# ---- one suite under one tool ----

applies() { # SUITE TOOL
  case $1 in
    gpt2_cuda*) [ "$2" = memcheck ] ;;
    cuda_backend | gemm_plans) [ "$2" != racecheck ] ;; # racecheck itself breaks down beside cuBLASLt's kernels
  esac
}

run_one() { # SUITE TOOL PORT
  local options=(--tool "$2" --port "$3" --target-processes application-only --launch-timeout 60 --error-exitcode 99
    --check-exit-code no --print-limit 20) words=() status=0
  [ "$2" != memcheck ] || options+=(--report-api-errors no)
  case $1 in attention | cuda_backend | gemm_plans) [ "$2" = memcheck ] || options+=(--kernel-name kns=gpt2) ;; esac
  [[ $1 != gpt2_cuda* ]] || words=("--test-case=$model_cases")
  case $1 in gemm | gemm_fp8) [ "$2" = memcheck ] || words=("--test-case=$own_kernels") ;; esac
  # shellcheck disable=SC2086 # OPTIONS are words
  timeout -k 10 "$limit" "$sanitizer" "${options[@]}" ${OPTIONS:-} "$programs/gpu_test_$1" "${words[@]}" \
    > "$logs/$1.$2.log" 2>&1 || status=$?
  echo "$status" > "$logs/$1.$2.status"
}

# What the table says of it: a number of reports, or what went wrong.
outcome() { # SUITE TOOL
  local log=$logs/$1.$2.log status reports
  [ -f "$logs/$1.$2.status" ] || { echo -; return; }
  status=$(< "$logs/$1.$2.status")
  reports=$(sed -n 's/^=* *\(ERROR\|RACECHECK\) SUMMARY: \([0-9]*\) .*/\2/p' "$log" | tail -n 1)
  if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    echo "over ${limit}s"
  elif [ -z "$reports" ]; then
    echo "broken"
  elif [ "$reports" = 0 ] && ! { grep -q 'Status: SUCCESS' "$log" && grep -q 'test cases: *[1-9]' "$log"; }; then
    echo "failed"
  else
    echo "$reports"
  fi
}

# ---- all of them ----

begin=$SECONDS
port=49152 # one range each: runs beside each other must not take another's connection
for tool in "${tools[@]}"; do
  for suite in "${suites[@]}"; do
    applies "$suite" "$tool" || continue
    while [ "$(jobs -rp | wc -l)" -ge "$jobs_at_once" ]; do wait -n || true; done
    run_one "$suite" "$tool" $port &
    port=$((port + 16))
  done
done
wait

! grep -q '^=.*Device not supported' "$logs"/*.log || skip "compute-sanitizer does not support this GPU here"
bad=()
printf '%-20s' suite
printf '%12s' "${tools[@]}"
echo
for suite in "${suites[@]}"; do
  printf '%-20s' "$suite"
  for tool in "${tools[@]}"; do
    found=$(outcome "$suite" "$tool")
    printf '%12s' "$found"
    case $found in 0 | -) ;; *) bad+=("$suite.$tool") ;; esac
  done
  echo
done
for name in "${bad[@]}"; do
  echo
  echo "---- $name"
  { grep '^=========' "$logs/$name.log" || tail -n 30 "$logs/$name.log"; } | head -n 40
done
echo "$("$sanitizer" --version | sed -n 's/^Version //p'), $((SECONDS - begin)) s: $([ ${#bad[@]} = 0 ] &&
  echo "nothing reported" || echo "${#bad[@]} runs with reports or failures")"
[ ${#bad[@]} = 0 ]
