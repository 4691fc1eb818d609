// What ranks need beside collectives, against plain loops.
#include "kernels/ranks.h"

#include "tests/gpu/gpu_test.h"

namespace gpt2 {

namespace {

std::vector<uint8_t> random_codes(size_t count) {
  std::vector<uint8_t> codes(count);
  const Rng rng(7);
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(rng.bits(i));
  return codes;
}

} // namespace

TEST_CASE("parts are added in FP32, in the order of ranks") {
  TestDevice device;
  for (const int ranks : {1, 2, 3, 8}) {
    for (const int64_t count : {int64_t{8}, int64_t{256}, int64_t{100000}}) {
      CAPTURE(ranks);
      CAPTURE(count);
      std::vector<bf16> parts;
      std::vector<float> expected(static_cast<size_t>(count), 0.0f);
      const Rng rng(3);
      for (int rank = 0; rank < ranks; ++rank) {
        for (int64_t i = 0; i < count; ++i) {
          const float value = bf16_decode(bf16_encode(static_cast<float>(rng.normal(parts.size()))));
          parts.push_back(__float2bfloat16(value));
          expected[static_cast<size_t>(i)] = rank == 0 ? value : expected[static_cast<size_t>(i)] + value;
        }
      }
      DeviceBuffer<bf16> gpu_parts(parts);
      DeviceBuffer<float> out(static_cast<size_t>(count));
      sum_over_ranks(device.cuda, {.out = out, .parts = gpu_parts, .ranks = ranks, .count = count});
      CHECK(same_bits(out.download(), expected));
    }
  }
}

TEST_CASE("segments go to their places, and nothing else is touched") {
  TestDevice device;
  const std::vector<Segment> segments = {{0, 5, 3}, {10, 20, 257}, {300, 0, 1}};
  std::vector<float> in(400);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  std::vector<float> expected(300, -1.0f);
  for (const Segment& segment : segments) {
    for (int64_t i = 0; i < segment.count; ++i)
      expected[static_cast<size_t>(segment.to + i)] = in[static_cast<size_t>(segment.from + i)];
  }
  DeviceBuffer<Segment> gpu_segments(segments);
  DeviceBuffer<float> gpu_in(in), out(std::vector<float>(300, -1.0f));
  copy_segments(device.cuda,
                CopySegments<float>{.out = out, .in = gpu_in, .segments = gpu_segments, .count = 3, .longest = 257});
  CHECK(same_bits(out.download(), expected));

  DeviceBuffer<bf16> rounded(std::vector<bf16>(300, __float2bfloat16(-1.0f)));
  copy_segments(device.cuda,
                CopySegments<bf16>{.out = rounded, .in = gpu_in, .segments = gpu_segments, .count = 3, .longest = 257});
  const std::vector<bf16> actual = rounded.download();
  for (size_t i = 0; i < actual.size(); ++i)
    CHECK(__bfloat162float(actual[i]) == bf16_decode(bf16_encode(expected[i])));
}

TEST_CASE("codes are turned, ragged tiles too") {
  TestDevice device;
  struct Shape {
    int64_t rows;
    int cols;
    int64_t elements() const { return rows * cols; }
  };
  for (const auto [rows, cols] : tested({Shape{16, 16}, Shape{48, 80}, Shape{144, 208}, Shape{768, 3072}})) {
    CAPTURE(rows);
    CAPTURE(cols);
    const std::vector<uint8_t> codes = random_codes(static_cast<size_t>(rows * cols));
    std::vector<uint8_t> expected(codes.size());
    for (int64_t row = 0; row < rows; ++row) {
      for (int col = 0; col < cols; ++col)
        expected[static_cast<size_t>(col * rows + row)] = codes[static_cast<size_t>(row * cols + col)];
    }
    DeviceBuffer<uint8_t> in(codes), out(codes.size());
    transpose_fp8(device.cuda, {.out = out, .in = in, .rows = rows, .cols = cols});
    CHECK(out.download() == expected);
  }
}

} // namespace gpt2
