// Quantization to FP8 on the GPU: bit for bit the CPU emulation's codes, both ways round.
#include "kernels/cast_fp8.h"

#include <bit>

#include "tests/gpu/fp8_test.h"

namespace gpt2 {
namespace {

struct Shape {
  int64_t rows;
  int cols;
  int64_t elements() const { return rows * cols; }
};

// Multiples of 16 on every side of the 128 x 64 tile, and GPT-2's own widths.
const Shape kShapes[] = {{16, 16},  {48, 80},     {144, 208},  {272, 768}, {16, 1600},
                         {128, 64}, {1040, 2304}, {144, 1024}, {272, 1280}};

// NaN codes carry no value: any of them will do for any NaN.
size_t wrong_codes(const std::vector<uint8_t>& actual, const std::vector<float>& in, Fp8Format format) {
  size_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    wrong += std::isnan(in[i]) ? !std::isnan(fp8_decode(actual[i], format)) : actual[i] != fp8_encode(in[i], format);
  }
  return wrong;
}

} // namespace

TEST_CASE("every BF16 number becomes the code that the CPU gives it") {
  TestDevice device;
  std::vector<float> in(65536);
  for (size_t code = 0; code < in.size(); ++code) in[code] = bf16_decode(static_cast<uint16_t>(code));
  std::vector<bf16> raw(in.size()); // not through to_bf16, which has one NaN only
  for (size_t code = 0; code < in.size(); ++code) {
    const auto bits = static_cast<uint16_t>(code);
    std::memcpy(static_cast<void*>(&raw[code]), &bits, sizeof bits);
  }
  DeviceBuffer<bf16> gpu_in(raw);
  for (const Fp8Format format : kFormats) {
    CAPTURE(to_string(format));
    CodeBuffers out(256, 256, 1.0f);
    cast_fp8(device.cuda, {.out = out.sink(format), .dbias = nullptr, .in = gpu_in, .rows = 256, .cols = 256});
    CHECK(wrong_codes(out.data.download(), in, format) == 0);
    out.check_transpose();
    const Quantized expected = quantized(in, format, 1.0f); // its amax is infinite: NaNs are not seen, infinities are
    const Fp8TensorMeta meta = out.meta.read();
    CHECK(std::isinf(out.meta.amax()));
    CHECK(meta.saturated == expected.counts.saturated);
    CHECK(meta.flushed == static_cast<unsigned long long>(expected.counts.flushed));
  }
}

TEST_CASE("any shape, with the meta and the column sums") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    for (const Fp8Format format : kFormats) {
      CAPTURE(describe(shape.rows, shape.cols, format));
      const std::vector<float> in = random_values(static_cast<size_t>(shape.rows * shape.cols), 1, 0.01f);
      const float scale = scale_for(in, format);
      const Quantized expected = quantized(in, format, scale);
      const std::vector<float> before = random_values(static_cast<size_t>(shape.cols), 2);
      std::vector<double> sums(before.begin(), before.end());
      for (size_t i = 0; i < in.size(); ++i) sums[i % sums.size()] += in[i];

      DeviceBuffer<bf16> gpu_in(to_bf16(in));
      DeviceBuffer<float> dbias(before);
      CodeBuffers out(shape.rows, shape.cols, scale);
      cast_fp8(device.cuda,
               {.out = out.sink(format), .dbias = dbias, .in = gpu_in, .rows = shape.rows, .cols = shape.cols});
      CHECK(same_bits(out.data.download(), expected.codes)); // one exact product, one rounding
      out.check_transpose();
      out.meta.check(expected.counts, 0, 0);
      CHECK(relative_error(dbias.download(), {sums.begin(), sums.end()}) < 1e-5);
    }
  }
}

TEST_CASE("each output can be left out, and the meta adds up") {
  TestDevice device;
  const Shape shape{144, 208};
  const Fp8Format format = Fp8Format::e4m3;
  const std::vector<float> in = random_values(static_cast<size_t>(shape.rows * shape.cols), 1);
  const float scale = scale_for(in, format);
  const Quantized expected = quantized(in, format, scale);
  DeviceBuffer<bf16> gpu_in(to_bf16(in));
  const std::vector<float> before = random_values(208, 2);
  DeviceBuffer<float> dbias(before);
  CodeBuffers out(shape.rows, shape.cols, scale);
  CastFp8 cast{.out = out.sink(format), .dbias = dbias, .in = gpu_in, .rows = shape.rows, .cols = shape.cols};

  SUBCASE("data only") {
    cast.out = out.data_only(format);
    cast_fp8(device.cuda, cast);
    CHECK(same_bits(out.data.download(), expected.codes));
    CHECK(poisoned(out.transposed));
    out.meta.check(expected.counts, 0, 0);
  }
  SUBCASE("transposed only, silently") {
    cast.out = out.transposed_only(format, Fp8Statistics::none);
    cast_fp8(device.cuda, cast);
    CHECK(same_bits(out.transposed.download(), transpose(expected.codes, shape.rows, shape.cols)));
    CHECK(poisoned(out.data));
    CHECK(out.meta.untouched());
  }
  SUBCASE("the amax only") {
    cast.out = out.sink(format, Fp8Statistics::amax_only);
    cast_fp8(device.cuda, cast);
    CHECK(poisoned(out.data));
    CHECK(poisoned(out.transposed));
    CHECK(same_bits(dbias.download(), before));
    out.meta.check_measured(expected.counts.amax, 0);
  }
  SUBCASE("two micro-batches on one meta") {
    cast_fp8(device.cuda, cast);
    std::vector<float> smaller = in;
    for (float& value : smaller) value *= 0.5f;
    DeviceBuffer<bf16> gpu_smaller(to_bf16(smaller));
    cast.in = gpu_smaller;
    cast_fp8(device.cuda, cast);
    const Quantized second = quantized(smaller, format, scale);
    Fp8Counts both = expected.counts;
    both.saturated += second.counts.saturated;
    both.flushed += second.counts.flushed;
    out.meta.check(both, 0, 0);
    CHECK(same_bits(out.data.download(), second.codes));
  }
}

} // namespace gpt2
