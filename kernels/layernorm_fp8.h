// LayerNorm forward with FP8 output. GPU only; tests compare with the CPU's layernorm and fp8_quantize.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

constexpr int kMaxFp8Channels = 2048; // 8 warps per row; backward: 32 rows of FP8 bytes in shared memory

// residual_out = residual_in + branch;  out = quantize(LayerNorm(residual_out) * weight + bias).
// 7 bytes per element (4 read, 2 + 1 written), 8 with the transpose.
struct LayerNormForwardFp8 {
  Fp8Output out;           // data; transposed too for the final LayerNorm
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

} // namespace gpt2
