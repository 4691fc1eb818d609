// FP32 to BF16 against the CPU's own.
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

} // namespace gpt2
