// GELU (tanh approximation) and its derivative on the device.
#pragma once

#include "kernels/ptx.cuh"

namespace gpt2 {

constexpr float kSqrt2OverPi = 0.7978845608f;
constexpr float kGeluCubic = 0.044715f;

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)): two instructions of the special function unit, and unlike tanh.approx
// accurate in relative terms where GELU is a thousandth of its input.
__device__ inline float gelu_sigmoid(float x) {
  constexpr float kLog2e = 1.4426950408889634f;
  const float u = kSqrt2OverPi * x * (1.0f + kGeluCubic * x * x);
  return fast_reciprocal(1.0f + fast_exp2(-2.0f * kLog2e * u));
}

__device__ inline float gelu(float x, float sigmoid) { return x * sigmoid; } // sigmoid = gelu_sigmoid(x)

__device__ inline float gelu_gradient(float x, float sigmoid) {
  const float slope = kSqrt2OverPi * (1.0f + 3.0f * kGeluCubic * x * x);
  return sigmoid + 2.0f * x * sigmoid * (1.0f - sigmoid) * slope;
}

} // namespace gpt2
