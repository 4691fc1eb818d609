// The fills that initialize a model, against the CPU's own.
#include "kernels/fill.h"

#include "tests/gpu/gpu_test.h"

namespace gpt2 {

TEST_CASE("normals are the CPU's, up to the last bit") {
  TestDevice device;
  for (const int64_t count : {1, 257, 100003}) {
    DeviceBuffer<float> out(static_cast<size_t>(count));
    fill_normal(device.cuda, FillNormal{out, count, 0, 1337, 5, 0.02f});
    const std::vector<float> actual = out.download();
    size_t wrong = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      const float expected = static_cast<float>(0.02f * Rng(1337, 5).normal(i));
      wrong += !(std::fabs(actual[i] - expected) <= 1.2e-7f * std::fabs(expected)); // one unit in the last place
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a rank makes its part of a tensor as if it had made all of it") {
  TestDevice device;
  DeviceBuffer<float> whole(1000), part(300);
  fill_normal(device.cuda, FillNormal{whole, 1000, 0, 1337, 5, 0.02f});
  fill_normal(device.cuda, FillNormal{part, 300, 450, 1337, 5, 0.02f});
  const std::vector<float> all = whole.download();
  CHECK(same_bits(part.download(), std::vector<float>(all.begin() + 450, all.begin() + 750)));
}

TEST_CASE("constants fill what was asked for and no more") {
  TestDevice device;
  for (const int64_t count : {1, 256, 1001}) {
    DeviceBuffer<float> out(static_cast<size_t>(count));
    fill_constant(device.cuda, FillConstant<float>{out, count, -1.5f});
    CHECK(same_bits(out.download(), std::vector<float>(static_cast<size_t>(count), -1.5f)));
  }
}

} // namespace gpt2
