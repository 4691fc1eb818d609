// FP8 products for K = 768, 1024 and 1280 as a kernel of ours, which competes with cuBLASLt's.
#pragma once

#include "kernels/cuda/gemm_problem.h"

namespace gpt2::sm90 {

// D(m, n) = A(k, m)^T B(k, n) (+ bias, + C) in BF16, A in E4M3, with fast accumulation.
GemmKernel gemm_fp8_weight_stationary();

} // namespace gpt2::sm90
