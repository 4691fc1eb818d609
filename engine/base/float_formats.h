// BF16, E4M3 and E5M2, bit for bit as cuda_bf16.h and cuda_fp8.h convert them: round to nearest even; FP8
// saturates finite overflow to the largest finite value (__NV_SATFINITE).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/base/host_device.h"

namespace gpt2 {

enum class Fp8Format : uint8_t { e4m3, e5m2 };

constexpr float fp8_max(Fp8Format format) { return format == Fp8Format::e4m3 ? 448.0f : 57344.0f; }
constexpr float fp8_smallest(Fp8Format format) { // smallest subnormal
  return format == Fp8Format::e4m3 ? 0x1.0p-9f : 0x1.0p-16f;
}
constexpr std::string_view to_string(Fp8Format format) { return format == Fp8Format::e4m3 ? "E4M3" : "E5M2"; }

// NaN encodes to 0x7F; infinities saturate, with their sign.
uint8_t fp8_encode(float value, Fp8Format format);
float fp8_decode(uint8_t byte, Fp8Format format); // every NaN decodes to 0x7FFFFFFF

// decode(encode(value)) in FP32. No branch and no table, so that a loop over it vectorizes. All operations but one
// addition are integer or exact, so no flag that relaxes floating point changes its bits.
inline float fp8_round(float value, Fp8Format format) {
  const int dropped_bits = format == Fp8Format::e4m3 ? 20 : 21;                      // of FP32's 23
  const uint32_t max_bits = std::bit_cast<uint32_t>(fp8_max(format));                // 448 or 57344
  const uint32_t min_normal = format == Fp8Format::e4m3 ? 0x3C800000u : 0x38800000u; // 2^-6 or 2^-14
  const float spacing_anchor = format == Fp8Format::e4m3 ? 0x1.0p14f : 0x1.0p7f; // its ulp is the smallest subnormal

  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits & 0x80000000u;
  const uint32_t magnitude = std::min(bits & 0x7FFFFFFFu, max_bits); // NaN: replaced at the end

  const uint32_t odd = (magnitude >> dropped_bits) & 1u;
  const uint32_t normal = (magnitude + (1u << (dropped_bits - 1)) - 1u + odd) >> dropped_bits << dropped_bits;

  // Subnormals are evenly spaced: adding the anchor makes the FPU round to that spacing, and the low mantissa bits then
  // count steps (at most 8).
  const float anchored = std::bit_cast<float>(std::min(magnitude, min_normal)) + spacing_anchor;
  const int32_t steps =
      static_cast<int32_t>(std::bit_cast<uint32_t>(anchored) - std::bit_cast<uint32_t>(spacing_anchor));
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(steps) * fp8_smallest(format));

  const uint32_t rounded = sign | (magnitude < min_normal ? subnormal : normal);
  return std::bit_cast<float>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFFFFFu : rounded);
}

uint16_t bf16_encode(float value); // round to nearest even, NaN to 0x7FFF
float bf16_decode(uint16_t bits);

bool all_finite(std::span<const float> values); // compares bits, so that no flag that relaxes floating point changes it

} // namespace gpt2
