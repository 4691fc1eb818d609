#!/usr/bin/env bash
# Prints the benchmark tables of a build: tools/run_benchmarks.sh BUILD_FOLDER (after its target `bench` is built).
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1/tests

echo "== CPU kernels and a whole 124M step against sgemm"
"$programs/bench_cpu_kernels"

echo
echo "== tokenizer, one core"
python=.deps/venv/bin/python3
if [ -x "$python" ] && "$python" -c 'import tiktoken' 2>/dev/null; then
  "$python" tests/bench/bench_tokenizer.py "$programs/bench_tokenizer"
else
  "$programs/bench_tokenizer"
  echo "(tools/install_deps.sh extra puts the tiktoken package beside it)"
fi

echo
echo "== a checkpoint of 124M, verified and loaded, beside reading its bytes"
"$programs/bench_load"

echo
echo "== training on the GPU"
if [ -x "$programs/bench_gpt2" ]; then
  "$programs/bench_gpt2" --operations
  echo
  "$programs/bench_gpu_kernels"
  "$programs/bench_gpt2" --decode
  if nvidia-smi -L > /dev/null 2>&1; then
    echo
    echo "== PyTorch on the same GPU"
    tests/bench/bench_torch.py || [ $? = 77 ]
    echo
    echo "== what a checkpoint every ten steps costs"
    tests/bench/bench_saves.py "$1/train_gpt2_fp8"
    echo
    echo "== text, beside transformers"
    tests/bench/bench_generate.py "$1/bin/generate" || [ $? = 77 ]
  fi
else
  echo "(not built: nvcc was not found)"
fi
