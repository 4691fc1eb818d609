// Elementwise functions that compilers vectorize, for the CPU kernels. (glibc has no vector expf on Arm before 2.38;
// its scalar expf costs more than the rest of a softmax.)
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace gpt2 {

// a * b + c with one rounding. Explicit, because -fassociative-math may regroup sums. Without an FMA instruction the
// exact double product gives the same result.
inline float fused_multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  return static_cast<float>(static_cast<double>(a) * b + c);
#endif
}

// e^x within 1.2e-7 relative for |x| < 87. Below e^-87.3 it is 0, above e^88.3 infinity; NaN stays NaN.
inline float vector_exp(float x) {
  constexpr float kLowest = -87.33654f; // e^x is the smallest normal number
  constexpr float kLog2e = 0x1.715476p+0f;
  constexpr float kLn2 = 0x1.62e430p-1f, kLn2Rest = -0x1.05c610p-29f; // ln 2 as a sum of two floats
  constexpr float kAnchor = 0x1.8p23f; // a number plus this is rounded to an integer, found in the lowest bits
  constexpr int32_t kAnchorBits = std::bit_cast<int32_t>(kAnchor);

  // e^x = 2^n e^r with |r| <= ln(2)/2. Limited in bits, where it costs two instructions whatever x is: 2^-127 and 2^128
  // then read as 0 and infinity.
  const float unlimited = fused_multiply_add(x, kLog2e, kAnchor);
  const int32_t anchored = std::clamp(std::bit_cast<int32_t>(unlimited), kAnchorBits - 127, kAnchorBits + 128);
  const float n = std::bit_cast<float>(anchored) - kAnchor;
  const float power = std::bit_cast<float>(static_cast<uint32_t>(anchored - kAnchorBits + 127) << 23);
  const float r = fused_multiply_add(n, -kLn2Rest, fused_multiply_add(n, -kLn2, x));
  // Taylor series; the first term left out is r^8 / 8! < 6e-9.
  constexpr float k2 = 1.0f / 2, k3 = 1.0f / 6, k4 = 1.0f / 24, k5 = 1.0f / 120, k6 = 1.0f / 720, k7 = 1.0f / 5040;
  const float e_r = 1 + (r + r * r * (k2 + r * (k3 + r * (k4 + r * (k5 + r * (k6 + r * k7))))));
  return x < kLowest ? 0.0f : power * e_r;
}

// Ignores NaNs: they show in the sum that follows.
inline float vector_max(const float* x, int64_t count) {
  float highest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : highest)
  for (int64_t i = 0; i < count; ++i) highest = x[i] > highest ? x[i] : highest;
  return highest;
}

// Scores to unnormalized probabilities.
struct Exponentiated {
  float highest, sum; // of the scores; of the probabilities
};
inline Exponentiated exponentiate(float* scores, int count) {
  const float highest = vector_max(scores, count);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) {
    scores[i] = vector_exp(scores[i] - highest);
    sum += scores[i];
  }
  return {highest, sum};
}

} // namespace gpt2
