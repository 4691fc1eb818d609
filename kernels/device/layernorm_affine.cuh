// LayerNorm's affine step, shared by forward and by the backward pass that recomputes its output: the same bits.
#pragma once

#include "kernels/device/vector.cuh"

namespace gpt2 {

__device__ inline Float8 layernorm_affine(const Float8& x, float mean, float rstd, const Float8& weight,
                                          const Float8& bias) {
  Float8 out;
#pragma unroll
  for (int k = 0; k < kVector; ++k) out.v[k] = (x.v[k] - mean) * rstd * weight.v[k] + bias.v[k];
  return out;
}

} // namespace gpt2
