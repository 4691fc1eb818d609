// The bias gradient on the GPU against the CPU reference.
#include "kernels/bias.h"

#include <string>

#include "tests/expect_error.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {
namespace {

struct Shape {
  int64_t rows;
  int cols;
  int64_t elements() const { return rows * cols; }
};

const Shape kShapes[] = {{1, 64},    {7, 3072},   {130, 4096}, {1000, 768}, {33, 5120},
                         {130, 200}, {130, 6400}, {5, 8},      {1000, 72},  {1000, 2304}};

std::string name_of(const Shape& s) { return "rows=" + std::to_string(s.rows) + " cols=" + std::to_string(s.cols); }

size_t size_of(const Shape& s) { return static_cast<size_t>(s.rows * s.cols); }

} // namespace

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
