// BF16 weight gradient GEMM for layers with a multiple of 320 channels on one side (774M and 1558M); autotuning times
// it against cuBLASLt.
#pragma once

#include "kernels/cuda/gemm_problem.h"

namespace gpt2::sm90 {

// D(m, n) += A(m, k) B(n, k)^T in FP32; A and B in BF16.
GemmKernel wgrad_gemm_splitk();

} // namespace gpt2::sm90
