#include "engine/base/float_formats.h"

#include <doctest/doctest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <vector>

#include "engine/base/rng.h"

// Where the CUDA headers are on the include path, their own host conversions are the judge.
#if __has_include(<cuda_fp8.h>)
#define GPT2_COMPARE_WITH_CUDA_HEADERS 1
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#endif

using namespace gpt2;

namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

// The formats' definition, written with none of the code under test: (-1)^s * 2^(e - bias) * (1 + m / 2^M).
double defined_value(int code, Fp8Format format) {
  const int mantissa_bits = format == Fp8Format::e4m3 ? 3 : 2;
  const int bias = format == Fp8Format::e4m3 ? 7 : 15;
  const int exponent_field = (code & 0x7F) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double sign = code & 0x80 ? -1.0 : 1.0;
  if (format == Fp8Format::e4m3 && (code & 0x7F) == 0x7F) return std::nan("");
  if (format == Fp8Format::e5m2 && exponent_field == 31) return mantissa ? std::nan("") : sign * INFINITY;
  const double fraction = mantissa / std::exp2(mantissa_bits);
  if (exponent_field == 0) return sign * std::exp2(1 - bias) * fraction;
  return sign * std::exp2(exponent_field - bias) * (1.0 + fraction);
}

// Nearest of all finite codes, ties to the even code: a search, not a conversion.
uint8_t nearest_code(float value, Fp8Format format) {
  if (std::isnan(value)) return 0x7F;
  const int largest = format == Fp8Format::e4m3 ? 0x7E : 0x7B;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= fp8_max(format)) return static_cast<uint8_t>(sign | largest);
  int best = 0;
  double best_distance = magnitude;
  for (int code = 1; code <= largest; ++code) {
    const double distance = std::fabs(defined_value(code, format) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<uint8_t>(sign | best);
}

constexpr Fp8Format kFormats[] = {Fp8Format::e4m3, Fp8Format::e5m2};

// Where rounding goes wrong if it does: every code's value, every midpoint between neighbors, and the floats
// just beside both; the ends of FP32's own range.
std::vector<float> hard_values(Fp8Format format) {
  std::vector<float> values = {
      0.0f, from_bits(1), FLT_MIN, FLT_MAX, INFINITY, from_bits(0x7FC00000), from_bits(0x7F800001)};
  const int largest = format == Fp8Format::e4m3 ? 0x7E : 0x7B;
  for (int code = 0; code <= largest; ++code) {
    const double here = defined_value(code, format);
    const double next = code < largest ? defined_value(code + 1, format) : 2 * here - defined_value(code - 1, format);
    for (const double centre : {here, (here + next) / 2, next}) {
      const auto value = static_cast<float>(centre);
      values.insert(values.end(), {std::nextafter(value, -1e30f), value, std::nextafter(value, 1e30f)});
    }
  }
  const size_t positive = values.size();
  for (size_t i = 0; i < positive; ++i) values.push_back(from_bits(bits_of(values[i]) ^ 0x80000000u));
  return values;
}

template <class Check>
void for_random_floats(int count, Check check) {
  const Rng rng(42);
  for (int i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(rng.bits(i));
    check(from_bits(bits)); // any bit pattern, then the same mantissa within FP8's range of exponents
    const uint32_t exponent = 127 - 20 + (bits >> 23) % 40;
    check(from_bits((bits & 0x807FFFFFu) | exponent << 23));
  }
}

} // namespace

TEST_CASE("all 256 codes of both formats decode to the value their definition gives") {
  for (const Fp8Format format : kFormats) {
    for (int code = 0; code < 256; ++code) {
      CAPTURE(code);
      const double expected = defined_value(code, format);
      const float decoded = fp8_decode(static_cast<uint8_t>(code), format);
      if (std::isnan(expected)) {
        CHECK(bits_of(decoded) == 0x7FFFFFFFu);
      } else {
        CHECK(bits_of(decoded) == bits_of(static_cast<float>(expected))); // bits: the sign of zero counts
      }
    }
  }
}

TEST_CASE("the limits are the largest and smallest codes") {
  CHECK(fp8_decode(0x7E, Fp8Format::e4m3) == fp8_max(Fp8Format::e4m3));
  CHECK(fp8_decode(0x7B, Fp8Format::e5m2) == fp8_max(Fp8Format::e5m2));
  for (const Fp8Format format : kFormats) CHECK(fp8_decode(1, format) == fp8_smallest(format));
  CHECK(to_string(Fp8Format::e4m3) == "E4M3");
  CHECK(to_string(Fp8Format::e5m2) == "E5M2");
}

TEST_CASE("every BF16 value encodes to the nearest code, ties to even") {
  for (const Fp8Format format : kFormats) {
    int wrong = 0;
    for (uint32_t code = 0; code < 65536; ++code) {
      const float value = bf16_decode(static_cast<uint16_t>(code));
      if (fp8_encode(value, format) != nearest_code(value, format)) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("FP32 values at, between and beside the codes encode to the nearest") {
  for (const Fp8Format format : kFormats) {
    for (const float value : hard_values(format)) {
      CAPTURE(value);
      CHECK(fp8_encode(value, format) == nearest_code(value, format));
    }
  }
}

TEST_CASE("special values") {
  for (const Fp8Format format : kFormats) {
    const uint8_t largest = format == Fp8Format::e4m3 ? 0x7E : 0x7B;
    CHECK(fp8_encode(INFINITY, format) == largest);
    CHECK(fp8_encode(-INFINITY, format) == (largest | 0x80));
    CHECK(fp8_encode(-0.0f, format) == 0x80);
    CHECK(fp8_encode(-1e-30f, format) == 0x80);
    CHECK(fp8_encode(from_bits(0xFFC00000u), format) == 0x7F); // the sign of a NaN is dropped
  }
}

TEST_CASE("fp8_round equals decode of encode, bit for bit") {
  for (const Fp8Format format : kFormats) {
    int wrong = 0;
    const auto compare = [&](float value) {
      const float expected = fp8_decode(fp8_encode(value, format), format);
      if (bits_of(fp8_round(value, format)) != bits_of(expected)) ++wrong;
    };
    for (uint32_t code = 0; code < 65536; ++code) {
      const float value = bf16_decode(static_cast<uint16_t>(code));
      compare(value);
      // fp8_encode is built on fp8_round, so the search judges both.
      if (bits_of(fp8_round(value, format)) != bits_of(fp8_decode(nearest_code(value, format), format))) ++wrong;
    }
    for (const float value : hard_values(format)) compare(value);
    for_random_floats(500000, compare);
    for_random_floats(10000, [&](float value) { wrong += fp8_encode(value, format) != nearest_code(value, format); });
    CHECK(wrong == 0);
  }
}

TEST_CASE("BF16 rounds to nearest even and keeps infinities; NaN is 0x7FFF") {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_decode(static_cast<uint16_t>(code));
    if (bits_of(value) != code << 16) FAIL("decode is a shift");
    const uint16_t expected = std::isnan(value) ? 0x7FFF : static_cast<uint16_t>(code);
    if (bf16_encode(value) != expected) FAIL("a BF16 value must encode to itself: ", code);
  }
  CHECK(bf16_encode(from_bits(0x3F808000u)) == 0x3F80); // tie, even below
  CHECK(bf16_encode(from_bits(0x3F818000u)) == 0x3F82); // tie, even above
  CHECK(bf16_encode(from_bits(0x3F808001u)) == 0x3F81);
  CHECK(bf16_encode(FLT_MAX) == 0x7F80); // overflows to infinity
  CHECK(bf16_encode(-FLT_MAX) == 0xFF80);
}

#ifdef GPT2_COMPARE_WITH_CUDA_HEADERS
TEST_CASE("the same bits as cuda_fp8.h and cuda_bf16.h") {
  for (const Fp8Format format : kFormats) {
    const auto interpretation = format == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
    int wrong = 0;
    const auto compare = [&](float value) {
      wrong += fp8_encode(value, format) != __nv_cvt_float_to_fp8(value, __NV_SATFINITE, interpretation);
      wrong += bf16_encode(value) != static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(value)).x;
    };
    for (uint32_t code = 0; code < 65536; ++code) compare(bf16_decode(static_cast<uint16_t>(code)));
    for (const float value : hard_values(format)) compare(value);
    for_random_floats(500000, compare);
    CHECK(wrong == 0);

    for (int code = 0; code < 256; ++code) {
      const __half half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), interpretation);
      CHECK(bits_of(fp8_decode(static_cast<uint8_t>(code), format)) == bits_of(__half2float(half)));
    }
  }
}
#endif
