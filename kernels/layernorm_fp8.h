// LayerNorm whose output goes to an FP8 matrix product, and its backward, which also quantizes the residual gradient.
// GPU only; tests compare with the CPU's layernorm and fp8_quantize.
#pragma once

#include "kernels/fp8_tensor.h"
#include "kernels/layernorm.h"

namespace gpt2 {

constexpr int kMaxFp8Channels = 2048; // of a team of 8 warps; backward keeps the codes of 32 rows in shared memory

// residual_out = residual_in + branch;  out = quantize(LayerNorm(residual_out) * weight + bias).
// 7 bytes per element (4 read, 2 + 1 written), 8 with the transpose.
struct LayerNormForwardFp8 {
  Fp8Output out;           // data always; transposed only for the final LayerNorm
  bf16* residual_out;      // (rows, C); ignored when branch is null
  float* mean;             // (rows)
  float* rstd;             // (rows)
  const bf16* residual_in; // (rows, C)
  const bf16* branch;      // (rows, C), or null
  const float* weight;     // (C)
  const float* bias;       // (C)
  int64_t rows;            // a multiple of 16
  int C;                   // a multiple of 16
};
void layernorm_forward_fp8(CudaStream&, const LayerNormForwardFp8&);

// dresidual_out = dresidual_in + gradient through the LayerNorm, in BF16 and, for the matrix products before it, in FP8
// and transposed. The LayerNorm's own output is made again from x and written transposed: the weight gradient of the
// product behind it needs that, and so it need not be kept. 11 bytes per element: 6 read, 2 + 1 + 1 + 1 written.
struct LayerNormBackwardFp8 {
  bf16* dresidual_out;      // (rows, C); may be dresidual_in itself
  const bf16* dresidual_in; // (rows, C), or null: zero
  Fp8Output dresidual_fp8;  // where it measures, nothing else is written; data and transposed of dresidual_out
                           // (quantized from FP32, before rounding to BF16); both null for the first block, whose
                           // gradient goes to the embedding
  Fp8Output out;  // only .transposed: (C, rows) codes of the LayerNorm's output; unmetered where they are forward's,
                  // bit for bit; a null pointer where forward kept them
  float* dweight; // (C) +=
  float* dbias;   // (C) +=
  float* dbranch_bias; // (C) += column sums of dresidual_out, or null
  const bf16* dout;    // (rows, C)
  const bf16* x;       // (rows, C)
  const float* weight; // (C)
  const float* bias;   // (C), to make the output again
  const float* mean;   // (rows)
  const float* rstd;   // (rows)
  int64_t rows;        // a multiple of 16
  int C;               // a multiple of 16
};
void layernorm_backward_fp8(CudaStream&, const LayerNormBackwardFp8&);

} // namespace gpt2
