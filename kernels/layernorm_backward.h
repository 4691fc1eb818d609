// LayerNorm's backward pass, in BF16 and with FP8 outputs. Sums run in a fixed order.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

// dresidual = (accumulate ? dresidual : 0) + gradient through the LayerNorm
template <class A>
struct LayerNormBackward {
  A* dresidual;        // (rows, C)
  float* dweight;      // (C) +=
  float* dbias;        // (C) +=
  float* dbranch_bias; // (C) += column sums of dresidual: bias gradient of the GEMM that made the branch; may be null
  const A* dout;       // (rows, C)
  const A* x;          // (rows, C), the LayerNorm's input
  const float* weight; // (C)
  const float* mean;   // (rows)
  const float* rstd;   // (rows)
  int64_t rows;
  int C;
  bool accumulate;
};
void layernorm_backward(Cpu&, const LayerNormBackward<float>&);
void layernorm_backward(CudaStream&, const LayerNormBackward<bf16>&);

// dresidual_out = dresidual_in + gradient through the LayerNorm, in BF16 and, for the preceding GEMMs, in FP8,
// row-major and transposed. Recomputes the LayerNorm's output from x and writes it transposed for the weight gradient,
// so that the forward pass need not keep it. 11 bytes per element: 6 read, 2 + 1 + 1 + 1 written. GPU only.
struct LayerNormBackwardFp8 {
  bf16* dresidual_out;      // (rows, C); may be dresidual_in itself
  const bf16* dresidual_in; // (rows, C), or null: zero
  // Row-major and transposed dresidual_out, quantized from FP32. amax_only(): nothing else is written. Null pointers
  // for the first block, whose gradient goes to the embedding.
  Fp8Output dresidual_fp8;
  // Transposed only: (C, rows) of the LayerNorm's output, the forward pass's bits. No statistics if that pass gathered
  // them. Null if that pass kept the transpose.
  Fp8Output out;
  float* dweight;      // (C) +=
  float* dbias;        // (C) +=
  float* dbranch_bias; // (C) += column sums of dresidual_out, or null
  const bf16* dout;    // (rows, C)
  const bf16* x;       // (rows, C)
  const float* weight; // (C)
  const float* bias;   // (C), to recompute the output
  const float* mean;   // (rows)
  const float* rstd;   // (rows)
  int64_t rows;        // a multiple of 16
  int C;               // a multiple of 16
};
void layernorm_backward_fp8(CudaStream&, const LayerNormBackwardFp8&);

} // namespace gpt2
