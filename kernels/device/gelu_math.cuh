// GELU (tanh approximation) and its derivative on the device.
#pragma once

#include "kernels/device/ptx.cuh"
#include "kernels/device/vector.cuh"

namespace gpt2 {

// 0.5 (1 + tanh(u)) = 1 / (1 + exp2(-2 log2(e) u)) with u = sqrt(2/pi) (x + 0.044715 x^3). Two special-function
// instructions; unlike tanh.approx accurate in relative terms where GELU is a thousandth of its input. Constants are
// folded: GELU backward in FP8 is bound by instructions, not bytes.
constexpr double kSqrt2OverPi = 0.79788456080286536;
constexpr double kGeluCubic = 0.044715;
constexpr double kMinusTwoLog2e = -2.8853900817779268;

__device__ inline float gelu_sigmoid(float x) {
  constexpr float kLinear = static_cast<float>(kMinusTwoLog2e * kSqrt2OverPi);
  constexpr float kCubic = static_cast<float>(kMinusTwoLog2e * kSqrt2OverPi * kGeluCubic);
  return fast_reciprocal(1.0f + fast_exp2(x * fmaf(kCubic, x * x, kLinear)));
}

__device__ inline float gelu(float x, float sigmoid) { return x * sigmoid; } // sigmoid = gelu_sigmoid(x)

// GELU' = sigmoid + gelu (1 - sigmoid) 2 u', with sigmoid = gelu_sigmoid(x) and gelu = gelu(x, sigmoid). Beyond |x| =
// 11 the sigmoid is 0 or 1 and so is GELU': gelu (1 - sigmoid) is exactly 0. u' stays finite there, because 0 *
// infinity is NaN. An infinite x gives NaN, as in PyTorch, and the step is skipped. kFinite: |x| is below 1e19, or the
// result is unused.
template <bool kFinite = false>
__device__ inline float gelu_gradient(float x, float sigmoid, float gelu) {
  constexpr float kConstant = static_cast<float>(2 * kSqrt2OverPi);
  constexpr float kSquare = static_cast<float>(6 * kSqrt2OverPi * kGeluCubic);
  constexpr float kSquareBeyond = 1e4f; // at |x| = 100
  const float square = kFinite ? x * x : fminf(x * x, kSquareBeyond);
  const float slope = fmaf(kSquare, square, kConstant);
  return fmaf(fmaf(-gelu, sigmoid, gelu), slope, sigmoid);
}

__device__ inline Float8 gelu(Float8 x) {
#pragma unroll
  for (float& value : x.v) value = gelu(value, gelu_sigmoid(value));
  return x;
}

// Multiplies `gradient` by GELU'(x) and returns GELU(x).
__device__ inline Float8 apply_gelu_gradient(Float8& gradient, const Float8& x) {
  Float8 out;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const float sigmoid = gelu_sigmoid(x.v[k]);
    out.v[k] = gelu(x.v[k], sigmoid);
    gradient.v[k] *= gelu_gradient(x.v[k], sigmoid, out.v[k]);
  }
  return out;
}

} // namespace gpt2
