#!/usr/bin/env bash
# Prints the CUDA architectures of this machine's GPUs for CMake, such as 90a-real;80-real. Prints nothing without a
# driver or a GPU of compute capability 8.0 or newer.
set -euo pipefail
command -v nvidia-smi >/dev/null || exit 0
capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) || exit 0

for capability in $(sort -u <<<"${capabilities//./}"); do
  [[ $capability =~ ^[0-9]+$ ]] && ((capability >= 80)) || continue
  case $capability in
    90) echo 90a-real ;; # a: Hopper's wgmma and TMA
    *) echo "$capability-real" ;;
  esac
done | paste -sd ';'
