// Stochastic rounding of the logits' gradient to E5M2, the same bits on the CPU and on the GPU.
//
// Rounding to nearest makes the same error every time it meets the same value, and dlogits repeat: the target's p - 1
// is near -1 for most tokens, and a frequent word has about the same p everywhere. Sums over tokens, where the true
// gradient mostly cancels, keep the error: the final LayerNorm's gradient had a cosine of 0.957 with BF16's. Stochastic
// rounding is unbiased, and so are the sums.
//
// E5M2 is the upper byte of an IEEE half: round to half, add a random byte to the lower one, drop it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/base/host_device.h"

namespace gpt2 {

// Eight random bytes for eight neighboring columns, the first four in `low`.
struct RoundingBytes {
  uint32_t low, high;
};

// A token's key is its position and target: no state, reproducible. A repeated pair repeats the bytes, but meets other
// values.
GPT2_HOST_DEVICE inline uint32_t rounding_key(int64_t position, int32_t target) {
  uint32_t x = static_cast<uint32_t>(position) * 0x9E3779B1u ^ static_cast<uint32_t>(target) * 0x85EBCA77u;
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

// The key is already mixed: a few instructions for eight columns.
GPT2_HOST_DEVICE inline RoundingBytes rounding_bytes(uint32_t key, int column) {
  const uint32_t x = (key ^ static_cast<uint32_t>(column) * 0xC2B2AE3Du) * 0x9E3779B1u;
  const uint32_t low = x ^ x >> 15, y = low * 0x85EBCA77u;
  return {low, y ^ y >> 13};
}

// Byte of column k of the eight. Two neighbors are dithered at once as halves of a word, so their bytes are 16 bits
// apart.
GPT2_HOST_DEVICE inline uint32_t rounding_byte(const RoundingBytes& bytes, int k) {
  const uint32_t word = k < 4 ? bytes.low : bytes.high;
  return word >> (k % 4 / 2 * 8 + k % 2 * 16) & 0xFFu;
}

// The value on E5M2's grid; |scaled| <= 57344. NaN stays.
inline float e5m2_round_stochastic(float scaled, uint32_t random_byte) {
  if (std::isnan(scaled)) return scaled;
  const float magnitude = std::fabs(scaled);
  float rounded;
  if (magnitude < 0x1.0p-14f) { // a subnormal half counts steps of 2^-24, a subnormal E5M2 steps of 2^-16
    const auto steps = static_cast<uint32_t>(std::nearbyint(magnitude * 0x1.0p24f)) + random_byte;
    rounded = static_cast<float>(steps >> 8) * 0x1.0p-16f;
  } else {
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
    const uint32_t half = (bits + 0xFFFu + (bits >> 13 & 1u)) >> 13; // to nearest even, 10 bits of mantissa
    rounded = std::bit_cast<float>((half + random_byte) >> 8 << 21);
  }
  return std::copysign(rounded, scaled);
}

} // namespace gpt2
