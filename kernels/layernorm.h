// LayerNorm forward, fused with the preceding residual add; epsilon is GPT-2's 1e-5.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

constexpr float kLayerNormEpsilon = 1e-5f;
constexpr int kMaxGpuChannels = 4096; // a row fits the registers of 1 warp (forward) or 16 (backward)

// residual_out = residual_in + branch;  out = LayerNorm(residual_out) * weight + bias
template <class A>
struct LayerNormForward {
  A* out;               // (rows, C)
  A* residual_out;      // (rows, C); ignored when branch is null
  float* mean;          // (rows), for the backward pass
  float* rstd;          // (rows)
  const A* residual_in; // (rows, C)
  const A* branch;      // (rows, C), or null: plain LayerNorm of residual_in
  const float* weight;  // (C) FP32 on both backends: BF16's grid near 1 is 0.4 to 0.8% wide
  const float* bias;    // (C)
  int64_t rows;
  int C;
};
void layernorm_forward(Cpu&, const LayerNormForward<float>&);
void layernorm_forward(CudaStream&, const LayerNormForward<bf16>&);

} // namespace gpt2
