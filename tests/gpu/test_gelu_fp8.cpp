// GELU into FP8 and its gradient into FP8 against the CPU's GELU and quantization.
#include "kernels/gelu_fp8.h"

#include "kernels/gelu.h"
#include "tests/gpu/fp8_test.h"

namespace gpt2 {
namespace {

constexpr double kShare = 1e-2;         // of codes one step apart: GELU's transcendental is an approximation
constexpr double kAmaxTolerance = 1e-3; // of the gradient, for the same reason
constexpr double kSumTolerance = 1e-3;

struct Shape {
  int64_t rows;
  int cols;
  int64_t elements() const { return rows * cols; }
};

const Shape kShapes[] = {{16, 16}, {48, 80}, {144, 208}, {272, 768}, {16, 1600}, {272, 3072}, {144, 6400}, {2064, 64}};

struct Layer {
  explicit Layer(Cpu& cpu, const Shape& shape, float deviation = 1.5f)
      : rows(shape.rows),
        cols(shape.cols),
        in(random_values(static_cast<size_t>(rows * cols), 1, deviation)),
        dout(random_values(in.size(), 2, 0.01f)),
        initial(random_values(static_cast<size_t>(cols), 3, 0.1f)),
        out(in.size()),
        din(in.size()),
        dbias(initial),
        gpu_in(to_bf16(in)),
        gpu_dout(to_bf16(dout)),
        gpu_dbias(initial) {
    gelu_forward(cpu, GeluForward<float>{out.data(), in.data(), rows, cols});
    gelu_backward(cpu, GeluBackward<float>{din.data(), dbias.data(), dout.data(), in.data(), rows, cols});
  }

  GeluBackwardFp8 backward(const Fp8Output& gradient, const Fp8Output& activation) {
    return {.din = gradient,
            .out = activation,
            .dbias = gpu_dbias,
            .dout = gpu_dout,
            .in = gpu_in,
            .rows = rows,
            .cols = cols};
  }

  int64_t rows;
  int cols;
  std::vector<float> in, dout, initial, out, din, dbias;
  DeviceBuffer<bf16> gpu_in, gpu_dout;
  DeviceBuffer<float> gpu_dbias;
};

} // namespace

TEST_CASE("forward: codes at most one step from the CPU's, and the meta") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    for (const Fp8Format format : kFormats) {
      CAPTURE(describe(shape.rows, shape.cols, format));
      Layer layer(device.cpu, shape);
      const float scale = scale_for(layer.out, format);
      const Quantized expected = quantized(layer.out, format, scale);
      CodeBuffers out(shape.rows, shape.cols, scale);
      gelu_forward_fp8(device.cuda,
                       {.out = out.data_only(format), .in = layer.gpu_in, .rows = shape.rows, .cols = shape.cols});
      check_codes(out.data.download(), expected.codes, kShare);
      out.meta.check(expected.counts, 5e-6, kShare); // the largest value is large: there GELU is the identity
      CHECK(poisoned(out.transposed));
    }
  }
}

TEST_CASE("backward: the gradient both ways round, the activation made again bit for bit, the bias gradient") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    for (const Fp8Format format : kFormats) {
      CAPTURE(describe(shape.rows, shape.cols, format));
      Layer layer(device.cpu, shape);
      const float out_scale = scale_for(layer.out, Fp8Format::e4m3), scale = scale_for(layer.din, format);
      CodeBuffers made(shape.rows, shape.cols, out_scale), again(shape.rows, shape.cols, out_scale);
      gelu_forward_fp8(
          device.cuda,
          {.out = made.data_only(Fp8Format::e4m3), .in = layer.gpu_in, .rows = shape.rows, .cols = shape.cols});

      const Quantized expected = quantized(layer.din, format, scale);
      CodeBuffers gradient(shape.rows, shape.cols, scale);
      gelu_backward_fp8(device.cuda, layer.backward(gradient.sink(format),
                                                    again.transposed_only(Fp8Format::e4m3, Fp8Statistics::none)));
      check_codes(gradient.data.download(), expected.codes, kShare);
      gradient.check_transpose();
      gradient.meta.check(expected.counts, kAmaxTolerance, kShare);
      CHECK(relative_error(layer.gpu_dbias.download(), layer.dbias) < kSumTolerance);
      CHECK(same_bits(again.transposed.download(), transpose(made.data.download(), shape.rows, shape.cols)));
      CHECK(again.meta.untouched());
    }
  }
}

TEST_CASE("the negative tail keeps its values: one step even where GELU is a thousandth of its input") {
  TestDevice device;
  std::vector<float> in;
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_decode(static_cast<uint16_t>(code));
    if (value <= -1 && value >= -4) in.push_back(value);
  }
  in.resize(in.size() / 256 * 256);
  const int64_t rows = static_cast<int64_t>(in.size() / 16);
  std::vector<float> values(in.size());
  gelu_forward(device.cpu, GeluForward<float>{values.data(), in.data(), rows, 16});
  DeviceBuffer<bf16> gpu_in(to_bf16(in));
  const float scale = 448.0f / 4; // as if the largest activation were 4
  CodeBuffers out(rows, 16, scale);
  gelu_forward_fp8(device.cuda, {.out = out.data_only(Fp8Format::e4m3), .in = gpu_in, .rows = rows, .cols = 16});
  CHECK(distance(out.data.download(), quantized(values, Fp8Format::e4m3, scale).codes).worst <= 1);
}

TEST_CASE("backward in its other uses") {
  TestDevice device;
  const Shape shape{144, small_shapes_only() ? 208 : 3072};
  Layer layer(device.cpu, shape);
  const Fp8Format format = Fp8Format::e5m2;
  const float out_scale = scale_for(layer.out, Fp8Format::e4m3), scale = scale_for(layer.din, format);
  const Quantized expected = quantized(layer.din, format, scale);
  CodeBuffers gradient(shape.rows, shape.cols, scale), again(shape.rows, shape.cols, out_scale);

  SUBCASE("the amax only") {
    gelu_backward_fp8(device.cuda, layer.backward(gradient.sink(format, Fp8Statistics::amax_only),
                                                  again.transposed_only(Fp8Format::e4m3, Fp8Statistics::all)));
    gradient.meta.check_measured(expected.counts.amax, kAmaxTolerance);
    CHECK(again.meta.untouched());
    CHECK(poisoned(gradient.data));
    CHECK(poisoned(gradient.transposed));
    CHECK(poisoned(again.transposed));
    CHECK(same_bits(layer.gpu_dbias.download(), layer.initial));
  }
  SUBCASE("the activation counted as a tensor of its own, in another format") {
    CodeBuffers made(shape.rows, shape.cols, out_scale);
    gelu_forward_fp8(
        device.cuda,
        {.out = made.data_only(Fp8Format::e4m3), .in = layer.gpu_in, .rows = shape.rows, .cols = shape.cols});
    gelu_backward_fp8(
        device.cuda, layer.backward(gradient.sink(format), again.transposed_only(Fp8Format::e4m3, Fp8Statistics::all)));
    CHECK(again.meta.amax() == made.meta.amax());
    CHECK(again.meta.read().saturated == made.meta.read().saturated);
    CHECK(again.meta.read().flushed == made.meta.read().flushed);
    gradient.meta.check(expected.counts, kAmaxTolerance, kShare);
  }
}

} // namespace gpt2
