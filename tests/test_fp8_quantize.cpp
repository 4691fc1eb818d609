#include "kernels/fp8_quantize.h"

#include <doctest/doctest.h>

#include "kernels/stochastic_rounding.h"

#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

constexpr Fp8Format kFormats[] = {Fp8Format::e4m3, Fp8Format::e5m2};

struct Expected {
  std::vector<float> out;
  Fp8Counts counts;
};

// One value at a time, through the codes themselves.
Expected reference(const std::vector<float>& in, Fp8Format format, float scale) {
  Expected expected;
  const float inverse = 1 / scale;
  for (float x : in) {
    const float decoded = fp8_decode(fp8_encode(x * scale, format), format);
    expected.out.push_back(decoded * inverse);
    expected.counts.amax = std::max(expected.counts.amax, std::fabs(x));
    expected.counts.values += 1;
    expected.counts.saturated += std::fabs(x * scale) > fp8_max(format);
    expected.counts.flushed += x != 0 && decoded == 0;
  }
  return expected;
}

// Magnitudes from far below the smallest subnormal to far above the largest number, and zeros of both signs.
std::vector<float> wide_values(int count) {
  auto values = random_tensor(count, 1);
  for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] *= std::ldexp(1.0f, i % 48 - 30);
  for (size_t i = 5; i < values.size(); i += 17) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  return values;
}

} // namespace

TEST_CASE("out is decode(encode(x * scale)) / scale bit for bit, and everything lost is counted") {
  Cpu cpu;
  for (Fp8Format format : kFormats) {
    for (float scale : {1.0f, 0.37f, 1234.5f}) {
      for (int count : {1, 7, 1000, 40'003}) {
        const auto in = wide_values(count);
        const auto want = reference(in, format, scale);
        std::vector<float> out(in.size(), kNan);
        Fp8Counts counts;
        fp8_quantize(cpu, {out.data(), in.data(), count, format, scale, &counts});
        CHECK(same_bits(out, want.out));
        CHECK(counts.amax == want.counts.amax);
        CHECK(counts.values == count);
        CHECK(counts.saturated == want.counts.saturated);
        CHECK(counts.flushed == want.counts.flushed);
        CHECK(absolute_max(cpu, in.data(), count) == want.counts.amax);
        if (count == 40'003) CHECK(counts.saturated > 0);
        if (count == 40'003) CHECK(counts.flushed > 0);

        auto in_place = in;
        fp8_quantize(cpu, {in_place.data(), in_place.data(), count, format, scale, &counts});
        CHECK(same_bits(in_place, want.out));
        CHECK(counts.amax == want.counts.amax); // a maximum does not grow, sums do
        CHECK(counts.values == 2 * count);
        CHECK(counts.saturated == 2 * want.counts.saturated);
      }
    }
  }
}

TEST_CASE("the largest number is not saturated, the next float is; half the smallest is flushed, more is not") {
  Cpu cpu;
  for (Fp8Format format : kFormats) {
    const float largest = fp8_max(format), smallest = fp8_smallest(format);
    const std::vector<float> in = {largest,
                                   -largest,
                                   std::nextafter(largest, 1e30f),
                                   -std::numeric_limits<float>::infinity(),
                                   smallest / 2,
                                   std::nextafter(smallest / 2, 1.0f),
                                   smallest};
    std::vector<float> out(in.size());
    Fp8Counts counts;
    fp8_quantize(cpu, {out.data(), in.data(), static_cast<int64_t>(in.size()), format, 1.0f, &counts});
    CHECK(out == std::vector<float>{largest, -largest, largest, -largest, 0.0f, smallest, smallest});
    CHECK(counts.saturated == 2);
    CHECK(counts.flushed == 1);
  }
}

TEST_CASE("NaN stays NaN and shows in the maximum") {
  Cpu cpu;
  std::vector<float> values(100, 1.0f);
  values[63] = kNan;
  CHECK(std::isnan(absolute_max(cpu, values.data(), 100)));
  Fp8Counts counts;
  fp8_quantize(cpu, {values.data(), values.data(), 100, Fp8Format::e4m3, 1.0f, &counts});
  CHECK(std::isnan(values[63]));
  CHECK(values[62] == 1.0f);
  CHECK(std::isnan(counts.amax));
  CHECK(counts.saturated == 0);
  CHECK(absolute_max(cpu, values.data(), 0) == 0.0f);
}

TEST_CASE("stochastic rounding: a neighbor on the grid, and over all random bytes the value itself on average") {
  std::vector<float> values;
  for (int i = 0; i < 4000; ++i) { // halves of every exponent, both signs, subnormals too: rounding to half is exact
    const float magnitude = std::ldexp(1024.0f + static_cast<float>(i * 37 % 1024), i % 30 - 24);
    values.push_back(i % 2 ? magnitude : -magnitude);
    values.push_back(static_cast<float>(i % 1024) * 0x1.0p-24f);
  }
  for (const float value : values) {
    if (std::fabs(value) > 49152.0f) continue;
    double sum = 0;
    bool neighbors = true;
    const float nearest = fp8_round(value, Fp8Format::e5m2);
    const float spacing =
        std::max(std::ldexp(1.0f, std::ilogb(std::max(std::fabs(value), 0x1.0p-14f)) - 2), 0x1.0p-16f);
    for (uint32_t random = 0; random < 256; ++random) {
      const float rounded = e5m2_round_stochastic(value, random);
      sum += rounded;
      neighbors = neighbors && fp8_round(rounded, Fp8Format::e5m2) == rounded && std::fabs(rounded - value) < spacing &&
                  std::fabs(rounded - nearest) <= spacing;
    }
    CHECK(neighbors);
    CHECK(sum / 256 == value);
  }
  CHECK(std::isnan(e5m2_round_stochastic(kNan, 255)));
  CHECK(std::signbit(e5m2_round_stochastic(-0.0f, 0)));
}

TEST_CASE("random bytes are spread evenly, over columns and over tokens") {
  double bytes = 0, products = 0;
  int count = 0;
  int seen[256] = {};
  for (int row = 0; row < 200; ++row) {
    const uint32_t key = rounding_key(row, row * row % 50257);
    uint32_t previous = 0;
    for (int column = 0; column < 800; ++column) {
      const uint32_t byte = rounding_byte(rounding_bytes(key, column / 8 * 8), column % 8);
      bytes += byte;
      products += (byte - 127.5) * (previous - 127.5);
      previous = byte;
      seen[byte] += 1;
      count += 1;
    }
  }
  CHECK(bytes / count == doctest::Approx(127.5).epsilon(0.01));
  CHECK(std::fabs(products / count) < 0.02 * 73.9 * 73.9); // neighbors are not correlated
  for (const int times : seen) CHECK(std::abs(times - count / 256) < 6 * std::sqrt(count / 256.0));
}

TEST_CASE("dlogits: rounded by token, unbiased where rounding to nearest is not, counted") {
  Cpu cpu;
  constexpr int kRows = 2000, kVocab = 16;
  constexpr float kScale = 16384.0f, kValue = -0.95f; // nearest: -1 every time
  std::vector<float> values(kRows * kVocab, kValue), rounded(values.size());
  values[5] = 0x1.0p-40f; // scaled, a quarter of a step of a half: rounds to zero
  std::vector<int32_t> targets(kRows);
  for (int row = 0; row < kRows; ++row) targets[static_cast<size_t>(row)] = row % 7;
  Fp8Counts counts;
  const auto quantize = [&](int64_t first_row) {
    fp8_quantize_dlogits(cpu,
                         {rounded.data(), values.data(), targets.data(), first_row, kRows, kVocab, kScale, &counts});
    return rounded;
  };
  const std::vector<float> once = quantize(0);
  double sum = 0;
  for (const float value : once) sum += value;
  CHECK(sum / static_cast<double>(once.size()) == doctest::Approx(kValue).epsilon(0.002));
  CHECK(once[5] == 0);
  CHECK(counts.flushed == 1);
  CHECK(counts.values == kRows * kVocab);
  CHECK(counts.amax == -kValue);
  CHECK(same_bits(quantize(0), once));
  CHECK_FALSE(same_bits(quantize(kRows), once)); // other positions, other bytes
}
