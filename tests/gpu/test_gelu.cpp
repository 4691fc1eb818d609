// GELU and its gradient on the GPU against the CPU reference.
#include "kernels/gelu.h"

#include <string>

#include "tests/gpu/gpu_test.h"
#include "tests/gpu/matrix_shapes.h"

namespace gpt2 {
namespace {

constexpr double kBf16Tolerance = 3e-3; // the rounding of the result alone: 1.7e-3 in norm
constexpr double kSumTolerance = 1e-3;  // the device's fast tanh is good to 2^-10.9, with errors of both signs

} // namespace

TEST_CASE("forward agrees with the CPU") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    CAPTURE(name_of(shape));
    const std::vector<float> in = random_values(size_of(shape), 1, 1.5f);
    std::vector<float> expected(in.size());
    gelu_forward(device.cpu, GeluForward<float>{expected.data(), in.data(), shape.rows, shape.cols});
    DeviceBuffer<bf16> gpu_in(to_bf16(in)), out(in.size());
    gelu_forward(device.cuda, GeluForward<bf16>{out, gpu_in, shape.rows, shape.cols});
    CHECK(relative_error(download_floats(out), expected) < kBf16Tolerance);
  }
}

TEST_CASE("forward is right at every BF16 number between -16 and 16, and keeps NaN") {
  TestDevice device;
  std::vector<float> in;
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_decode(static_cast<uint16_t>(code));
    if (std::fabs(value) <= 16) in.push_back(value);
  }
  while (in.size() % 8 != 7) in.push_back(0);
  in.push_back(std::numeric_limits<float>::quiet_NaN());
  std::vector<float> expected(in.size());
  const int cols = static_cast<int>(in.size());
  gelu_forward(device.cpu, GeluForward<float>{expected.data(), in.data(), 1, cols});
  DeviceBuffer<bf16> gpu_in(to_bf16(in)), out(in.size());
  gelu_forward(device.cuda, GeluForward<bf16>{out, gpu_in, 1, cols});
  const std::vector<float> actual = download_floats(out);
  CHECK(std::isnan(actual.back()));
  size_t wrong = 0;
  for (size_t i = 0; i + 1 < in.size(); ++i) { // half a BF16 step, and what tanh's 2^-10.9 leaves of x/2 (1 + tanh)
    const float allowed = std::fabs(expected[i]) * 0x1.0p-8f + std::fabs(in[i]) * 2.7e-4f + 1e-38f;
    wrong += !(std::fabs(actual[i] - expected[i]) <= allowed);
  }
  CHECK(wrong == 0);
}

TEST_CASE("backward agrees with the CPU, in place or not, and adds to the bias gradient") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    for (const bool in_place : {false, true}) {
      CAPTURE(name_of(shape));
      CAPTURE(in_place);
      const std::vector<float> in = random_values(size_of(shape), 1, 1.5f), dout = random_values(size_of(shape), 2);
      std::vector<float> expected(in.size()), dbias = random_values(static_cast<size_t>(shape.cols), 3, 2.0f);
      DeviceBuffer<float> gpu_dbias(dbias);
      gelu_backward(device.cpu,
                    GeluBackward<float>{expected.data(), dbias.data(), dout.data(), in.data(), shape.rows, shape.cols});
      DeviceBuffer<bf16> gpu_in(to_bf16(in)), gpu_dout(to_bf16(dout)), din(in.size());
      bf16* const target = in_place ? gpu_dout.get() : din.get();
      gelu_backward(device.cuda, GeluBackward<bf16>{target, gpu_dbias, gpu_dout, gpu_in, shape.rows, shape.cols});
      CHECK(relative_error(download_floats(in_place ? gpu_dout : din), expected) < kBf16Tolerance);
      CHECK(relative_error(gpu_dbias.download(), dbias) < kSumTolerance);
    }
  }
}

TEST_CASE("backward without a bias gradient writes the same bits") {
  TestDevice device;
  const Shape shape{130, small_shapes_only() ? 200 : 3072};
  const std::vector<float> in = random_values(size_of(shape), 1), dout = random_values(size_of(shape), 2);
  DeviceBuffer<bf16> gpu_in(to_bf16(in)), gpu_dout(to_bf16(dout)), with(in.size()), without(in.size());
  DeviceBuffer<float> dbias(std::vector<float>(static_cast<size_t>(shape.cols), 0.0f));
  gelu_backward(device.cuda, GeluBackward<bf16>{with, dbias, gpu_dout, gpu_in, shape.rows, shape.cols});
  gelu_backward(device.cuda, GeluBackward<bf16>{without, nullptr, gpu_dout, gpu_in, shape.rows, shape.cols});
  CHECK(same_bits(with.download(), without.download()));
}

TEST_CASE("the gradient is right at every BF16 number there is") {
  TestDevice device;
  std::vector<float> in;
  for (uint32_t code = 0; code < 65536; ++code) in.push_back(bf16_decode(static_cast<uint16_t>(code)));
  const std::vector<float> ones(in.size(), 1.0f);
  std::vector<float> expected(in.size());
  gelu_backward(device.cpu, GeluBackward<float>{expected.data(), nullptr, ones.data(), in.data(), 256, 256});
  DeviceBuffer<bf16> gpu_in(to_bf16(in)), gpu_dout(to_bf16(ones)), din(in.size());
  gelu_backward(device.cuda, GeluBackward<bf16>{din, nullptr, gpu_dout, gpu_in, 256, 256});
  const std::vector<float> actual = download_floats(din);
  size_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!std::isfinite(in[i])) { // neither NaN nor infinity may pass for a number
      wrong += !std::isnan(actual[i]) || !std::isnan(expected[i]);
    } else if (std::fabs(in[i]) >= 16) { // up to where x^3 and x^2 overflow
      wrong += actual[i] != (in[i] > 0 ? 1.0f : 0.0f);
    } else { // denormals included: one step of BF16, and what fast exponentials lose where the slope crosses zero
      wrong += !(std::fabs(actual[i] - expected[i]) <= std::ldexp(std::fabs(expected[i]), -8) + 1e-6f);
    }
  }
  CHECK(wrong == 0);
}

} // namespace gpt2
