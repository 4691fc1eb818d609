// The three GEMMs of a linear layer in FP8. cuBLASLt on Hopper requires both operands K-major ("TN"): transposed copies
// exist for this reason. GPU only; sizes are multiples of 16.
//
// Fast accumulation keeps sums in the tensor cores' 14-bit format and truncates, so a sum shrinks with K. No loss for K
// = 768 to 6,400 in a block's layers; but for K = 65,536 tokens the weight gradient's norm at 124M was 7% short, and
// over the vocabulary the LM head's gradients had a cosine of 0.69 with BF16's (docs/fp8.md). Weight gradients and the
// head's input gradient therefore promote to FP32 every 128 of K, 9% slower (docs/benchmarks.md).
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

// out = in weight^T + bias (+ residual), with fast accumulation.
struct GemmForwardFp8 {
  bf16* out;        // (rows, OC)
  Fp8Tensor in;     // (rows, C)
  Fp8Tensor weight; // (OC, C)
  const bf16* bias; // (OC), or null
  int64_t rows;
  int C, OC;
  const bf16* residual = nullptr; // (rows, OC), not out itself
};
void gemm_forward_fp8(CudaStream&, const GemmForwardFp8&);

// din = dout weight; fast accumulation for OC up to 8,192
struct GemmBackwardInputFp8 {
  bf16* din;          // (rows, C)
  Fp8Tensor dout;     // (rows, OC)
  Fp8Tensor weight_t; // (C, OC): the weight's transpose
  int64_t rows;
  int C, OC;
};
void gemm_backward_input_fp8(CudaStream&, const GemmBackwardInputFp8&);

// dweight += dout^T in, accumulated in FP32
struct GemmBackwardWeightFp8 {
  float* dweight;   // (OC, C) +=
  Fp8Tensor dout_t; // (OC, rows)
  Fp8Tensor in_t;   // (C, rows)
  int64_t rows;
  int C, OC;
};
void gemm_backward_weight_fp8(CudaStream&, const GemmBackwardWeightFp8&);

} // namespace gpt2
