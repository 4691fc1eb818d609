#!/usr/bin/env bash
# Prints the CUDA architectures of this machine's GPUs in CMake's words, such as 90a-real;80-real. Prints nothing where
# there is no driver, or no GPU that the CUDA engine can use (compute capability 8.0 or newer).
set -euo pipefail
command -v nvidia-smi >/dev/null || exit 0
capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) || exit 0

for capability in $(sort -u <<<"${capabilities//./}"); do
  [[ $capability =~ ^[0-9]+$ ]] && ((capability >= 80)) || continue
  case $capability in
    90) echo 90a-real ;; # with Hopper's own instructions
    *) echo "$capability-real" ;;
  esac
done | paste -sd ';'
