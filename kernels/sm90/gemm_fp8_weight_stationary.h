// Plain FP8 GEMM for K = 768, 1024 and 1280; autotuning times it against cuBLASLt.
#pragma once

#include "kernels/cuda/gemm_problem.h"

namespace gpt2::sm90 {

// D(m, n) = A(k, m)^T B(k, n) (+ bias, + C) in BF16; A in E4M3, B in E4M3 or E5M2; fast accumulation.
GemmKernel gemm_fp8_weight_stationary();

} // namespace gpt2::sm90
