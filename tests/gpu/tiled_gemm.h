// A product kernel of ours for the tests of how products are chosen: plain tiles, plain loops, every sum in order.
#pragma once

#include "kernels/cuda/gemm_problem.h"

namespace gpt2 {

GemmKernel tiled_gemm(); // D(m, n) = A(k, m)^T B(k, n) in BF16, without epilogue or accumulation

} // namespace gpt2
