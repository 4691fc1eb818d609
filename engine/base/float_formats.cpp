#include "engine/base/float_formats.h"

namespace gpt2 {

namespace {

constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kInfinity = 0x7F800000u;
constexpr uint32_t kNan = 0x7FFFFFFFu; // the canonical NaN of cuda_fp16.h as FP32

constexpr int mantissa_bits(Fp8Format format) { return format == Fp8Format::e4m3 ? 3 : 2; }
constexpr int exponent_bias(Fp8Format format) { return format == Fp8Format::e4m3 ? 7 : 15; }

} // namespace

uint8_t fp8_encode(float value, Fp8Format format) {
  const uint32_t bits = std::bit_cast<uint32_t>(fp8_round(value, format)); // representable, so the rest is exact
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) return 0x7F;

  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  const int mantissa = mantissa_bits(format);
  const int exponent =
      static_cast<int>(magnitude >> 23) - 127 + exponent_bias(format); // FP8's exponent field; 1 and above: normal
  if (exponent < 1) {
    return sign | static_cast<uint8_t>(std::bit_cast<float>(magnitude) / fp8_smallest(format));
  }
  const uint32_t fraction = (magnitude & 0x007FFFFFu) >> (23 - mantissa);
  return sign | static_cast<uint8_t>(static_cast<uint32_t>(exponent) << mantissa | fraction);
}

float fp8_decode(uint8_t byte, Fp8Format format) {
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80) << 24;
  const uint32_t magnitude = byte & 0x7Fu;
  const uint32_t infinity =
      format == Fp8Format::e4m3 ? 0x7E : 0x7C; // E4M3 has no infinity: its NaN follows the largest value
  if (magnitude > infinity) return std::bit_cast<float>(kNan);
  if (format == Fp8Format::e5m2 && magnitude == infinity) return std::bit_cast<float>(sign | kInfinity);

  const int mantissa = mantissa_bits(format);
  const uint32_t smallest_normal = 1u << mantissa;
  if (magnitude < smallest_normal) {
    const float value = static_cast<float>(magnitude) * fp8_smallest(format);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  const auto rebias = static_cast<uint32_t>(127 - exponent_bias(format)) << 23;
  return std::bit_cast<float>(sign | ((magnitude << (23 - mantissa)) + rebias));
}

uint16_t bf16_encode(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & ~kSign) > kInfinity) return 0x7FFF;
  const uint32_t odd = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7FFFu + odd) >> 16);
}

float bf16_decode(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

bool all_finite(std::span<const float> values) {
  uint32_t largest = 0; // no branch: the loop vectorizes
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & ~kSign);
  return largest < kInfinity;
}

} // namespace gpt2
