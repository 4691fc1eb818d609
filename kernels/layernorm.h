// LayerNorm fused with the residual add before it; epsilon is GPT-2's 1e-5.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

constexpr float kLayerNormEpsilon = 1e-5f;
constexpr int kMaxGpuChannels = 4096; // forward's warp and backward's 16 hold a row in registers; multiples of 8

// residual_out = residual_in + branch;  out = LayerNorm(residual_out) * weight + bias
template <class A>
struct LayerNormForward {
  A* out;               // (rows, C)
  A* residual_out;      // (rows, C); ignored when branch is null
  float* mean;          // (rows), kept for backward
  float* rstd;          // (rows)
  const A* residual_in; // (rows, C)
  const A* branch;      // (rows, C), or null: plain LayerNorm of residual_in
  const float* weight;  // (C) in FP32 on both backends: BF16's grid near 1 is 0.4 to 0.8% wide
  const float* bias;    // (C)
  int64_t rows;
  int C;
};
void layernorm_forward(Cpu&, const LayerNormForward<float>&);
void layernorm_forward(CudaStream&, const LayerNormForward<bf16>&);

// dresidual = (accumulate ? dresidual : 0) + gradient through the LayerNorm. Sums are in a fixed order.
template <class A>
struct LayerNormBackward {
  A* dresidual;        // (rows, C)
  float* dweight;      // (C) +=
  float* dbias;        // (C) +=
  float* dbranch_bias; // (C) += column sums of the resulting dresidual: the bias gradient of the GEMM whose output
                       // was the branch; null where there is none
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

} // namespace gpt2
