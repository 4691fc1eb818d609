// The bias gradient on the GPU against the CPU reference.
#include "kernels/bias.h"

#include <string>

#include "tests/expect_error.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/matrix_shapes.h"

namespace gpt2 {

TEST_CASE("adds column sums, the same bits every time") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    CAPTURE(name_of(shape));
    const std::vector<float> dout = random_values(size_of(shape), 2);
    const std::vector<float> before = random_values(static_cast<size_t>(shape.cols), 3, 2.0f);
    std::vector<float> expected = before;
    bias_backward(device.cpu, BiasBackward<float>{expected.data(), dout.data(), shape.rows, shape.cols});
    DeviceBuffer<bf16> gpu_dout(to_bf16(dout));
    DeviceBuffer<float> first(before), second(before);
    bias_backward(device.cuda, BiasBackward<bf16>{first, gpu_dout, shape.rows, shape.cols});
    bias_backward(device.cuda, BiasBackward<bf16>{second, gpu_dout, shape.rows, shape.cols});
    CHECK(relative_error(first.download(), expected) < 1e-5); // exact products, FP32 sums in another order
    CHECK(same_bits(first.download(), second.download()));
  }
}

TEST_CASE("columns that do not come in vectors are refused") {
  TestDevice device;
  DeviceBuffer<bf16> dout(12);
  DeviceBuffer<float> dbias(12);
  const Error error = expect_error([&] { bias_backward(device.cuda, BiasBackward<bf16>{dbias, dout, 1, 12}); });
  CHECK(error.code() == ExitCode::device);
  CHECK(mentions(error, "bias_backward requires that cols is a multiple of 8"));
}

} // namespace gpt2
