// LayerNorm into FP8 and its backward against the CPU's LayerNorm and quantization.
#include "kernels/layernorm_fp8.h"

#include "kernels/layernorm.h"
#include "kernels/layernorm_backward.h"
#include "tests/gpu/fp8_test.h"

namespace gpt2 {
namespace {

constexpr double kShare = 1e-3;         // of codes that FP32 rounding may move by one step
constexpr double kAmaxTolerance = 1e-6; // the last bits of an FP32 mean and reciprocal root
constexpr double kBf16Tolerance = 3e-3; // BF16's rounding: 1.7e-3 in norm
constexpr double kSumTolerance = 5e-5;  // FP32 sums of up to 102,400 terms in another order

struct Shape {
  int64_t rows;
  int C;
  int64_t elements() const { return rows * C; }
};

// Rows that are no multiple of a tile's 64, GPT-2's widths. The last three give the blocks of an H200 more than one
// tile each.
const Shape kShapes[] = {{16, 16},   {48, 80},   {144, 208}, {272, 768},   {272, 1024}, {144, 1280},
                         {48, 1600}, {16, 2048}, {8480, 16}, {102400, 16}, {9040, 768}};
// And so do these, where a row has several warps. (Forward would meet values that cancel to nothing among so many.)
const Shape kLongWalks[] = {{9040, 1024}, {9040, 1280}, {9040, 1600}, {8480, 2048}};

struct Layer {
  explicit Layer(const Shape& shape)
      : rows(shape.rows),
        C(shape.C),
        size(static_cast<size_t>(rows * C)),
        x(random_values(size, 1, 1.0f, 0.3f)),
        branch(random_values(size, 2)),
        weight(between_bf16(random_values(static_cast<size_t>(C), 3, 0.2f, 1.0f))),
        bias(between_bf16(random_values(static_cast<size_t>(C), 4, 0.3f))),
        gpu_x(to_bf16(x)),
        gpu_branch(to_bf16(branch)),
        gpu_weight(weight),
        gpu_bias(bias),
        mean(static_cast<size_t>(rows)),
        rstd(static_cast<size_t>(rows)),
        gpu_mean(static_cast<size_t>(rows)),
        gpu_rstd(static_cast<size_t>(rows)) {}

  std::vector<float> normalize(Cpu& cpu, const std::vector<float>& input) {
    std::vector<float> out(size);
    layernorm_forward(cpu, LayerNormForward<float>{out.data(), nullptr, mean.data(), rstd.data(), input.data(), nullptr,
                                                   weight.data(), bias.data(), rows, C});
    return out;
  }

  // Without a branch: the LayerNorm of x.
  LayerNormForwardFp8 forward(const Fp8Output& out) {
    return {out, nullptr, gpu_mean, gpu_rstd, gpu_x, nullptr, gpu_weight, gpu_bias, rows, C};
  }

  int64_t rows;
  int C;
  size_t size;
  std::vector<float> x, branch, weight, bias;
  DeviceBuffer<bf16> gpu_x, gpu_branch;
  DeviceBuffer<float> gpu_weight, gpu_bias;
  std::vector<float> mean, rstd;
  DeviceBuffer<float> gpu_mean, gpu_rstd;
};

// How far FP32 rounding may move each value of dx = above + (dnorm - mean(dnorm) - norm mean(dnorm norm)) rstd, with
// dnorm = dout weight: 2^-24 of the terms' magnitudes for each rounding on the way. Six of them are the formula's own;
// a mean is a sum of 8 terms a lane, 5 more steps in a warp and up to 8 warps, 21; rstd is the root of such a mean. 40
// bound what 21 + 21/2 + 6 could do at the very worst.
std::vector<double> rounding_errors(const Layer& layer, const std::vector<float>& dout,
                                    const std::vector<float>& above) {
  constexpr double kRounding = 40 * 0x1.0p-24;
  const auto C = static_cast<size_t>(layer.C);
  std::vector<double> errors(layer.size), dnorm(C), norm(C);
  for (size_t row = 0; row < static_cast<size_t>(layer.rows); ++row) {
    double mean_dnorm = 0, mean_dnorm_norm = 0; // of magnitudes
    for (size_t c = 0; c < C; ++c) {
      dnorm[c] = std::fabs(static_cast<double>(dout[row * C + c]) * layer.weight[c]);
      norm[c] = std::fabs((static_cast<double>(layer.x[row * C + c]) - layer.mean[row]) * layer.rstd[row]);
      mean_dnorm += dnorm[c] / layer.C;
      mean_dnorm_norm += dnorm[c] * norm[c] / layer.C;
    }
    for (size_t c = 0; c < C; ++c) {
      const double terms = (dnorm[c] + mean_dnorm + norm[c] * mean_dnorm_norm) * layer.rstd[row];
      errors[row * C + c] = kRounding * (terms + std::fabs(static_cast<double>(above[row * C + c])));
    }
  }
  return errors;
}

// One backward pass: inputs, everything it writes, and what the CPU says.
struct Backward {
  Backward(Cpu& cpu, Layer& layer, Fp8Format format)
      : dout(random_values(layer.size, 5, 0.01f)),
        before(random_values(layer.size, 6, 0.01f)),
        initial(random_values(static_cast<size_t>(layer.C), 7)),
        dresidual(before),
        dweight(initial),
        dbias(initial),
        dbranch(initial),
        gpu_dout(to_bf16(dout)),
        gpu_before(to_bf16(before)),
        gpu_dresidual(layer.size),
        gpu_dweight(initial),
        gpu_dbias(initial),
        gpu_dbranch(initial) {
    layernorm_backward(cpu, LayerNormBackward<float>{dresidual.data(), dweight.data(), dbias.data(), dbranch.data(),
                                                     dout.data(), layer.x.data(), layer.weight.data(),
                                                     layer.mean.data(), layer.rstd.data(), layer.rows, layer.C, true});
    scale = scale_for(dresidual, format);
  }

  LayerNormBackwardFp8 args(Layer& layer, const Fp8Output& gradient, const Fp8Output& out) {
    return {.dresidual_out = gpu_dresidual,
            .dresidual_in = gpu_before,
            .dresidual_fp8 = gradient,
            .out = out,
            .dweight = gpu_dweight,
            .dbias = gpu_dbias,
            .dbranch_bias = gpu_dbranch,
            .dout = gpu_dout,
            .x = layer.gpu_x,
            .weight = layer.gpu_weight,
            .bias = layer.gpu_bias,
            .mean = layer.gpu_mean,
            .rstd = layer.gpu_rstd,
            .rows = layer.rows,
            .C = layer.C};
  }

  void check_sums() {
    CHECK(relative_error(gpu_dweight.download(), dweight) < kSumTolerance);
    CHECK(relative_error(gpu_dbias.download(), dbias) < kSumTolerance);
    CHECK(relative_error(gpu_dbranch.download(), dbranch) < kSumTolerance);
    CHECK(relative_error(download_floats(gpu_dresidual), dresidual) < kBf16Tolerance);
  }

  float scale = 1;
  std::vector<float> dout, before, initial, dresidual, dweight, dbias, dbranch;
  DeviceBuffer<bf16> gpu_dout, gpu_before, gpu_dresidual;
  DeviceBuffer<float> gpu_dweight, gpu_dbias, gpu_dbranch;
};

} // namespace

TEST_CASE("forward: the residual sum, the codes, their transpose and the meta") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    for (const Fp8Format format : kFormats) {
      CAPTURE(describe(shape.rows, shape.C, format));
      Layer layer(shape);
      std::vector<float> sum(layer.size);
      for (size_t i = 0; i < layer.size; ++i) sum[i] = layer.x[i] + layer.branch[i];
      const std::vector<bf16> stream = to_bf16(sum);
      const std::vector<float> normed = layer.normalize(device.cpu, to_float(stream));
      const float scale = scale_for(normed, format);
      const Quantized expected = quantized(normed, format, scale);
      DeviceBuffer<bf16> residual(layer.size);
      CodeBuffers out(shape.rows, shape.C, scale), plain(shape.rows, shape.C, scale);
      LayerNormForwardFp8 args = layer.forward(out.sink(format));
      args.residual_out = residual;
      args.branch = layer.gpu_branch;
      layernorm_forward_fp8(device.cuda, args);
      CHECK(same_bits(residual.download(), stream));
      check_codes(out.data.download(), expected.codes, kShare);
      out.check_transpose();
      out.meta.check(expected.counts, kAmaxTolerance, kShare);
      CHECK(relative_error(layer.gpu_mean.download(), layer.mean) < 2e-5);
      CHECK(relative_error(layer.gpu_rstd.download(), layer.rstd) < 2e-5);

      args.out = plain.data_only(format); // another kernel: without the transpose
      residual.poison();
      layernorm_forward_fp8(device.cuda, args);
      CHECK(same_bits(plain.data.download(), out.data.download()));
      CHECK(same_bits(residual.download(), stream));
      CHECK(plain.meta.amax() == out.meta.amax());
      CHECK(plain.meta.read().saturated == out.meta.read().saturated);
      CHECK(plain.meta.read().flushed == out.meta.read().flushed);
    }
  }
}

TEST_CASE("forward without a branch, silently") {
  TestDevice device;
  Layer layer({144, 768});
  const std::vector<float> normed = layer.normalize(device.cpu, layer.x);
  CodeBuffers out(144, 768, 100.0f);
  layernorm_forward_fp8(device.cuda, layer.forward(out.data_only(Fp8Format::e4m3, Fp8Statistics::none)));
  check_codes(out.data.download(), quantized(normed, Fp8Format::e4m3, 100.0f).codes, kShare);
  CHECK(out.meta.untouched());
  CHECK(poisoned(out.transposed));
}

TEST_CASE("backward: the gradient in BF16 and FP8, the output made again bit for bit, the sums") {
  TestDevice device;
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), std::begin(kLongWalks), std::end(kLongWalks));
  for (const Shape& shape : tested(shapes)) {
    for (const Fp8Format format : kFormats) {
      CAPTURE(describe(shape.rows, shape.C, format));
      Layer layer(shape);
      const float out_scale = scale_for(layer.normalize(device.cpu, layer.x), Fp8Format::e4m3);
      CodeBuffers made(shape.rows, shape.C, out_scale), again(shape.rows, shape.C, out_scale);
      layernorm_forward_fp8(device.cuda, layer.forward(made.data_only(Fp8Format::e4m3)));

      Backward backward(device.cpu, layer, format);
      const Quantized expected = quantized(backward.dresidual, format, backward.scale);
      CodeBuffers gradient(shape.rows, shape.C, backward.scale);
      layernorm_backward_fp8(device.cuda, backward.args(layer, gradient.sink(format),
                                                        again.transposed_only(Fp8Format::e4m3, Fp8Statistics::none)));
      backward.check_sums();
      check_codes(gradient.data.download(), backward.dresidual, rounding_errors(layer, backward.dout, backward.before),
                  format, backward.scale, kShare);
      gradient.check_transpose();
      gradient.meta.check(expected.counts, 2e-6, kShare); // the gradient is a difference: a few last bits
      CHECK(same_bits(again.transposed.download(), transpose(made.data.download(), shape.rows, shape.C)));
      CHECK(again.meta.untouched());
    }
  }
}

TEST_CASE("backward with each output left out") {
  TestDevice device;
  const Shape shape{272, 768};
  const Fp8Format format = Fp8Format::e5m2;
  Layer layer(shape);
  const std::vector<float> normed = layer.normalize(device.cpu, layer.x);
  const float out_scale = scale_for(normed, Fp8Format::e4m3);
  CodeBuffers made(shape.rows, shape.C, out_scale), again(shape.rows, shape.C, out_scale);
  layernorm_forward_fp8(device.cuda, layer.forward(made.data_only(Fp8Format::e4m3)));
  Backward backward(device.cpu, layer, format);
  const Quantized expected = quantized(backward.dresidual, format, backward.scale);
  CodeBuffers gradient(shape.rows, shape.C, backward.scale);

  SUBCASE("the first block: no FP8 gradient; the output counted as a tensor of its own") {
    layernorm_backward_fp8(
        device.cuda, backward.args(layer, Fp8Output{}, again.transposed_only(Fp8Format::e4m3, Fp8Statistics::all)));
    backward.check_sums();
    CHECK(same_bits(again.transposed.download(), transpose(made.data.download(), shape.rows, shape.C)));
    CHECK(again.meta.amax() == made.meta.amax());
    CHECK(again.meta.read().flushed == made.meta.read().flushed);
  }
  SUBCASE("the final LayerNorm: no output, no gradient from above") {
    LayerNormBackwardFp8 args = backward.args(layer, gradient.sink(format), Fp8Output{});
    args.dresidual_in = nullptr;
    std::vector<float> dresidual(layer.size), unused(static_cast<size_t>(layer.C)), dbranch = backward.initial;
    layernorm_backward(device.cpu,
                       LayerNormBackward<float>{dresidual.data(), unused.data(), unused.data(), dbranch.data(),
                                                backward.dout.data(), layer.x.data(), layer.weight.data(),
                                                layer.mean.data(), layer.rstd.data(), layer.rows, layer.C, false});
    layernorm_backward_fp8(device.cuda, args);
    const std::vector<float> nothing_above(layer.size, 0.0f);
    check_codes(gradient.data.download(), dresidual, rounding_errors(layer, backward.dout, nothing_above), format,
                backward.scale, kShare);
    gradient.check_transpose();
    CHECK(relative_error(download_floats(backward.gpu_dresidual), dresidual) < kBf16Tolerance);
    CHECK(relative_error(backward.gpu_dbranch.download(), dbranch) < kSumTolerance);
  }
  SUBCASE("neither, and no branch bias") {
    LayerNormBackwardFp8 args = backward.args(layer, Fp8Output{}, Fp8Output{});
    args.dbranch_bias = nullptr;
    layernorm_backward_fp8(device.cuda, args);
    CHECK(relative_error(download_floats(backward.gpu_dresidual), backward.dresidual) < kBf16Tolerance);
    CHECK(relative_error(backward.gpu_dweight.download(), backward.dweight) < kSumTolerance);
    CHECK(same_bits(backward.gpu_dbranch.download(), backward.initial));
  }
  SUBCASE("the amax only, then the same pass in full") {
    LayerNormBackwardFp8 args = backward.args(layer, gradient.sink(format, Fp8Statistics::amax_only),
                                              again.transposed_only(Fp8Format::e4m3, Fp8Statistics::all));
    layernorm_backward_fp8(device.cuda, args);
    gradient.meta.check_measured(expected.counts.amax, 2e-6);
    CHECK(again.meta.untouched());
    CHECK(poisoned(gradient.data));
    CHECK(poisoned(gradient.transposed));
    CHECK(poisoned(again.transposed));
    CHECK(poisoned(backward.gpu_dresidual));
    CHECK(same_bits(backward.gpu_dweight.download(), backward.initial));
    CHECK(same_bits(backward.gpu_dbranch.download(), backward.initial));
    args.dresidual_fp8 = gradient.sink(format);
    layernorm_backward_fp8(device.cuda, args);
    backward.check_sums();
    check_codes(gradient.data.download(), backward.dresidual, rounding_errors(layer, backward.dout, backward.before),
                format, backward.scale, kShare);
  }
}

} // namespace gpt2
