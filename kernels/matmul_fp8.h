// The linear layer's three products in FP8. cuBLASLt on Hopper contracts over the innermost dimension of both operands
// ("TN"), which is why transposes exist at all. GPU only; sizes are multiples of 16.
//
// Fast accumulation keeps sums in the tensor cores' own format, some 14 bits, and cuts off what falls below: good
// enough forward, where a sum has 768 to 6,400 terms. Backward sums have up to 65,536 terms: with it the first step's
// gradient norm at 124M was 7% below BF16's, and the LM head's gradients, where one target of magnitude 1 meets 50,000
// small probabilities, had a cosine of 0.69 with BF16's (docs/fp8.md). So backward products move their sums to FP32
// every 128 terms (1284 instead of 1333 TFLOP/s on 8192^3).
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

// out = in weight^T + bias, with fast accumulation.
struct MatmulForwardFp8 {
  bf16* out;        // (rows, OC)
  Fp8Tensor in;     // (rows, C)
  Fp8Tensor weight; // (OC, C)
  const bf16* bias; // (OC), or null
  int64_t rows;
  int C, OC;
};
void matmul_forward_fp8(Cuda&, const MatmulForwardFp8&);

// din = dout weight
struct MatmulBackwardInputFp8 {
  bf16* din;          // (rows, C)
  Fp8Tensor dout;     // (rows, OC)
  Fp8Tensor weight_t; // (C, OC): the weight's transpose
  int64_t rows;
  int C, OC;
};
void matmul_backward_input_fp8(Cuda&, const MatmulBackwardInputFp8&);

// dweight += dout^T in, accumulated in FP32
struct MatmulBackwardWeightFp8 {
  float* dweight;   // (OC, C) +=
  Fp8Tensor dout_t; // (OC, rows)
  Fp8Tensor in_t;   // (C, rows)
  int64_t rows;
  int C, OC;
};
void matmul_backward_weight_fp8(Cuda&, const MatmulBackwardWeightFp8&);

} // namespace gpt2
