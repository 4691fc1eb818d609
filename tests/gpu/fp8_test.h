// What the FP8 tests share: the CPU emulation of a sink, and how far two tensors of codes are apart.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/float_formats.h"
#include "kernels/fp8_quantize.h"
#include "kernels/fp8_tensor.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {

constexpr Fp8Format kFormats[] = {Fp8Format::e4m3, Fp8Format::e5m2};

// What a producer must write for these values, and what its meta must have seen.
struct Quantized {
  std::vector<uint8_t> codes;
  Fp8Counts counts;
};

inline Quantized quantized(const std::vector<float>& values, Fp8Format format, float scale) {
  Quantized out;
  for (const float value : values) {
    const float scaled = value * scale;
    out.codes.push_back(fp8_encode(scaled, format));
    out.counts.amax = std::max(out.counts.amax, std::fabs(value)); // a NaN is not seen
    out.counts.saturated += std::fabs(scaled) > fp8_max(format);
    const bool sampled = (out.codes.size() - 1) % kFlushedSample == 0;
    out.counts.flushed += sampled && value != 0 && fp8_decode(out.codes.back(), format) == 0;
  }
  out.counts.values = static_cast<int64_t>(values.size());
  return out;
}

// A scale that uses the format's range, saturates a few of the largest values and flushes a few of the smallest.
inline float scale_for(const std::vector<float>& values, Fp8Format format) {
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return 1.25f * fp8_max(format) / amax;
}

template <class T>
std::vector<T> transpose(const std::vector<T>& in, int64_t rows, int64_t cols) {
  std::vector<T> out(in.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) out[static_cast<size_t>(c * rows + r)] = in[static_cast<size_t>(r * cols + c)];
  }
  return out;
}

// Codes count steps of the format's grid, by magnitude and sign: the neighbors of +0 and -0 are one step away.
inline int grid_place(uint8_t code) { return code & 0x80 ? -(code & 0x7F) : code & 0x7F; }

struct CodeDistance {
  int worst = 0;    // steps
  double share = 0; // of codes that differ
};

inline CodeDistance distance(const std::vector<uint8_t>& actual, const std::vector<uint8_t>& expected) {
  REQUIRE(actual.size() == expected.size());
  CodeDistance out;
  size_t different = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const int steps = std::abs(grid_place(actual[i]) - grid_place(expected[i]));
    out.worst = std::max(out.worst, steps);
    different += steps != 0;
  }
  out.share = static_cast<double>(different) / static_cast<double>(actual.size());
  return out;
}

// At most one step apart, and that rarely: `share` of the values, or two of them where there are few.
inline void check_codes(const std::vector<uint8_t>& actual, const std::vector<uint8_t>& expected, double share) {
  const CodeDistance apart = distance(actual, expected);
  CHECK(apart.worst <= 1);
  CHECK(apart.share <= std::max(share, 2.0 / static_cast<double>(expected.size())));
}

// For values that are sums whose terms may cancel: `errors` says how far FP32 rounding of the terms may move each
// value. Codes are relative, so where the terms cancel almost to nothing the same error spans many codes, and both
// signs. Codes also grow with the values: what lies within v - e and v + e has a code within theirs, and nothing beyond
// is right. Where no terms cancel these are one code or two neighbors, as above.
inline void check_codes(const std::vector<uint8_t>& actual, const std::vector<float>& values,
                        const std::vector<double>& errors, Fp8Format format, float scale, double share) {
  std::vector<uint8_t> nearest = quantized(values, format, scale).codes;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto place = [&](double value) { return grid_place(fp8_encode(static_cast<float>(value * scale), format)); };
    const int low = place(values[i] - errors[i]), high = place(values[i] + errors[i]), is = grid_place(actual[i]);
    if (std::abs(is - grid_place(nearest[i])) > 1 && low <= is && is <= high) nearest[i] = actual[i]; // explained
  }
  check_codes(actual, nearest, share);
}

// A meta and an amax in device memory, with the scale given and nothing seen.
class MeterBuffer {
 public:
  explicit MeterBuffer(float scale)
      : before_{.scale_inv = 1 / scale, .scale = scale, .saturated = 0, .flushed = 0},
        buffer_(std::vector<Fp8TensorMeta>{before_}),
        amax_(std::vector<uint32_t>{0}) {}
  operator Fp8TensorMeta*() { return buffer_.get(); }
  Fp8TensorMeta read() const { return buffer_.download()[0]; }
  uint32_t* amax_bits() { return amax_.get(); }
  float amax() const { return std::bit_cast<float>(amax_.download()[0]); }

  bool untouched() const {
    const Fp8TensorMeta now = read();
    return now.scale == before_.scale && now.scale_inv == before_.scale_inv && amax() == 0 && now.saturated == 0 &&
           now.flushed == 0;
  }

  // Nothing but the amax was told.
  void check_measured(float expected, double amax_tolerance) const {
    CHECK(std::fabs(static_cast<double>(amax()) - expected) <= amax_tolerance * expected);
    CHECK(read().saturated == 0);
    CHECK(read().flushed == 0);
  }

  // `amax_tolerance` is relative; `slack` is the share of values whose last bit may have moved them over a border.
  void check(const Fp8Counts& expected, double amax_tolerance, double slack) const {
    const Fp8TensorMeta now = read();
    CHECK(now.scale == before_.scale);
    CHECK(now.scale_inv == before_.scale_inv);
    CHECK(std::fabs(static_cast<double>(amax()) - expected.amax) <= amax_tolerance * expected.amax);
    const double allowed = slack * static_cast<double>(expected.values) + (slack > 0 ? 2 : 0);
    CHECK(std::fabs(static_cast<double>(now.saturated) - static_cast<double>(expected.saturated)) <= allowed);
    CHECK(std::fabs(static_cast<double>(now.flushed) - static_cast<double>(expected.flushed)) <= allowed);
  }

 private:
  Fp8TensorMeta before_;
  DeviceBuffer<Fp8TensorMeta> buffer_;
  DeviceBuffer<uint32_t> amax_;
};

// A (rows, cols) tensor of codes, both ways round, poisoned.
struct CodeBuffers {
  CodeBuffers(int64_t rows, int64_t cols, float scale)
      : rows(rows),
        cols(cols),
        data(static_cast<size_t>(rows * cols)),
        transposed(static_cast<size_t>(rows * cols)),
        meta(scale) {}
  Fp8Output sink(Fp8Format format, Fp8Statistics statistics = Fp8Statistics::all) {
    return {data, transposed, format, meta, meta.amax_bits(), statistics};
  }
  Fp8Output data_only(Fp8Format format, Fp8Statistics statistics = Fp8Statistics::all) {
    return {data, nullptr, format, meta, meta.amax_bits(), statistics};
  }
  Fp8Output transposed_only(Fp8Format format, Fp8Statistics statistics) {
    return {nullptr, transposed, format, meta, meta.amax_bits(), statistics};
  }

  void check_transpose() const { CHECK(same_bits(transposed.download(), transpose(data.download(), rows, cols))); }

  int64_t rows, cols;
  DeviceBuffer<uint8_t> data, transposed;
  MeterBuffer meta;
};

// Nothing was written: every byte is still the poison.
template <class T>
bool poisoned(const DeviceBuffer<T>& buffer) {
  const std::vector<T> values = buffer.download();
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  return std::all_of(bytes, bytes + values.size() * sizeof(T), [](unsigned char byte) { return byte == 0xFF; });
}

inline std::string describe(int64_t rows, int64_t cols, Fp8Format format) {
  return std::to_string(rows) + " x " + std::to_string(cols) + " " + std::string(to_string(format));
}

} // namespace gpt2
