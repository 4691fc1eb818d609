// LayerNorm's last step, the same in forward and where backward makes its output again, bit for bit.
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
