// FP32 to BF16 and the fills that initialise a model, against the CPU's own.
#include "kernels/cast.h"

#include <bit>

#include "tests/gpu/gpu_test.h"

namespace gpt2 {

TEST_CASE("FP32 rounds to BF16 as on the CPU around every BF16 number") {
  TestDevice device;
  std::vector<float> in;
  for (uint32_t code = 0; code < 65536; ++code) {
    for (const uint32_t below : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      in.push_back(std::bit_cast<float>(code << 16 | below));
    }
  }
  while (in.size() % 8 != 0) in.push_back(0);
  DeviceBuffer<float> gpu_in(in);
  DeviceBuffer<bf16> out(in.size());
  cast_to_bf16(device.cuda, CastToBf16{out, gpu_in, static_cast<int64_t>(in.size())});
  const std::vector<float> actual = download_floats(out), expected = to_float(to_bf16(in));
  size_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool same = std::bit_cast<uint32_t>(actual[i]) == std::bit_cast<uint32_t>(expected[i]);
    wrong += std::isnan(in[i]) ? !std::isnan(actual[i]) : !same;
  }
  CHECK(wrong == 0);
}

TEST_CASE("normals are the CPU's, up to the last bit") {
  TestDevice device;
  for (const int64_t count : {1, 257, 100003}) {
    DeviceBuffer<float> out(static_cast<size_t>(count));
    fill_normal(device.cuda, FillNormal{out, count, 1337, 5, 0.02f});
    const std::vector<float> actual = out.download();
    size_t wrong = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      const float expected = static_cast<float>(0.02f * Rng(1337, 5).normal(i));
      wrong += !(std::fabs(actual[i] - expected) <= 1.2e-7f * std::fabs(expected)); // one unit in the last place
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("constants fill what was asked for and no more") {
  TestDevice device;
  for (const int64_t count : {1, 256, 1001}) {
    DeviceBuffer<float> out(static_cast<size_t>(count));
    fill_constant(device.cuda, FillConstant{out, count, -1.5f});
    CHECK(same_bits(out.download(), std::vector<float>(static_cast<size_t>(count), -1.5f)));
  }
}

} // namespace gpt2
