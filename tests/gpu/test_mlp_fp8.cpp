// The MLP's products with GELU in one kernel, against double precision and against the two kernels they replace.
#include "kernels/sm90/mlp_fp8.h"

#include <algorithm>
#include <cmath>

#include "kernels/gelu_fp8.h"
#include "kernels/gemm_fp8.h"
#include "tests/gpu/fp8_matrix.h"

namespace gpt2 {
namespace {

constexpr double kTolerance = 1e-2; // as in test_gemm_fp8.cpp: fast accumulation, and BF16
// Of codes one apart: the product errs by 1e-3, a slope by 1/404 (of 1, mostly), BF16 in the kernels replaced by 2e-3;
// a step is a quarter to an eighth of a value in E5M2, half of that in E4M3.
constexpr double kShare = 5e-2, kShareOfReplaced = 1e-1;
constexpr double kCountShare = 2e-3; // of values that the product's error moves over a border

struct Shape {
  int64_t rows;
  int C, OC;
  int64_t elements() const {
    return rows * OC;
  } // so that every kernel has a shape that is small enough for the sanitizer
};

// One tile each; several panels and tiles, not as many tiles for every block; the model's.
const Shape kShapes[] = {{128, 768, 384},  {128, 1024, 256}, {128, 1280, 256}, {256, 1600, 256}, {640, 768, 3072},
                         {384, 1024, 512}, {640, 1280, 512}, {768, 1600, 768}, {384, 1024, 4096}};
const Shape kRepeated[] = {{128, 768, 384},    {256, 768, 3072},    {128, 1024, 256},   {256, 1280, 512},
                           {16384, 768, 3072}, {16384, 1024, 4096}, {4096, 1280, 5120}, {4096, 1600, 6400}};
// The small ones: what goes wrong at a start. C = 1280 has the shortest ring, so every reuse follows at once.
int repeats_of(const Shape& s) { return s.rows <= 1024 ? 100 : s.C == 1280 ? 30 : 10; }

bool has_fused(const TestDevice& device, const Shape& s) {
  if (can_fuse_mlp_fp8(*device.cuda.device, s.rows, s.C, s.OC)) return true;
  CHECK(!device.cuda.device->sm90_kernels);
  MESSAGE("skipped: fused products need compute capability 9.0");
  return false;
}

double gelu_of(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

double gelu_gradient_of(double x) {
  const double u = 0.7978845608028654 * (x + 0.044715 * x * x * x), t = std::tanh(u);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

double slope_of(uint8_t byte) { return (byte - kSlopeZero) / kSlopeSteps; }

// fc's operands and results.
struct Forward {
  explicit Forward(const Shape& s)
      : s(s),
        in(s.rows, s.C, Fp8Format::e4m3, 1, 1.0f),
        weight(s.OC, s.C, Fp8Format::e4m3, 2, 0.04f),
        bias(random_values(static_cast<size_t>(s.OC), 3, 0.5f)),
        gpu_bias(to_bf16(bias)),
        slope(static_cast<size_t>(s.rows * s.OC)),
        gelu(s.rows, s.OC, kGeluScale) {}

  void run(CudaStream& cuda) {
    fc_gelu_fp8(cuda, {.gelu = gelu.data_only(Fp8Format::e4m3),
                       .slope = slope,
                       .in = in.tensor(),
                       .weight = weight.tensor(),
                       .bias = gpu_bias,
                       .rows = s.rows,
                       .C = s.C,
                       .OC = s.OC});
  }

  static constexpr float kGeluScale = 250; // values up to 4: 5% saturate
  Shape s;
  Fp8Matrix in, weight;
  std::vector<float> bias;
  DeviceBuffer<bf16> gpu_bias;
  DeviceBuffer<uint8_t> slope;
  CodeBuffers gelu;
};

// fcproj's gradient, at a random x.
struct Backward {
  Backward(const Shape& s, Fp8Format format)
      : s(s),
        format(format),
        scale(fp8_max(format) / 0.02f), // of some 0.01: a few per cent saturate
        dout(s.rows, s.C, format, 4, 1e-2f),
        weight_t(s.OC, s.C, Fp8Format::e4m3, 5, 0.04f),
        x(random_values(static_cast<size_t>(s.rows * s.OC), 6, 1.5f)),
        initial(random_values(static_cast<size_t>(s.OC), 7, 0.1f)),
        slope(x.size()),
        dbias(initial),
        dx(s.rows, s.OC, scale) {
    std::vector<float> activation;
    for (size_t i = 0; i < x.size(); ++i) {
      activation.push_back(static_cast<float>(gelu_of(x[i])));
      slope[i] = static_cast<uint8_t>(std::lround(gelu_gradient_of(x[i]) * kSlopeSteps + kSlopeZero));
    }
    codes = quantized(activation, Fp8Format::e4m3, Forward::kGeluScale).codes;
    gpu_slope.upload(slope);
    gpu_codes.upload(codes);
  }

  void run(CudaStream& cuda) {
    fcproj_gelu_gradient_fp8(cuda, {.dx = dx.sink(format),
                                    .gelu_t = gelu_t,
                                    .dbias = dbias,
                                    .dout = dout.tensor(),
                                    .weight_t = weight_t.tensor(),
                                    .gelu = gpu_codes,
                                    .slope = gpu_slope,
                                    .rows = s.rows,
                                    .C = s.C,
                                    .OC = s.OC});
  }

  Shape s;
  Fp8Format format;
  float scale;
  Fp8Matrix dout, weight_t;
  std::vector<float> x, initial;
  std::vector<uint8_t> slope, codes; // of x
  DeviceBuffer<uint8_t> gpu_slope{x.size()}, gpu_codes{x.size()}, gelu_t{x.size()};
  DeviceBuffer<float> dbias;
  CodeBuffers dx;
};

std::vector<double> absolute(std::vector<double> values) {
  for (double& value : values) value = std::fabs(value);
  return values;
}

std::vector<float> decoded(const std::vector<uint8_t>& codes, Fp8Format format) {
  std::vector<float> values;
  for (const uint8_t code : codes) values.push_back(fp8_decode(code, format));
  return values;
}

} // namespace

TEST_CASE("forward: GELU of the product with its bias, in codes, and its slope") {
  TestDevice device;
  for (const Shape& s : tested(kShapes)) {
    if (!has_fused(device, s)) return;
    CAPTURE(describe(s.rows, s.C, Fp8Format::e4m3));
    Forward f(s);
    f.run(device.cuda);
    std::vector<double> x(static_cast<size_t>(s.rows * s.OC)), sizes(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = f.bias[i % static_cast<size_t>(s.OC)];
    multiply_add(x, f.in.values, f.weight.values, s.rows, s.OC, s.C);
    multiply_add(sizes, absolute(f.in.values), absolute(f.weight.values), s.rows, s.OC, s.C);
    const std::vector<uint8_t> slope = f.slope.download();
    std::vector<float> gelu;
    // Errors of slopes: each at most half a step and what the product errs; together those of rounding, 1 / sqrt(12).
    double worst = 0, sum = 0, squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      sizes[i] *= 0x1p-10;
      gelu.push_back(static_cast<float>(gelu_of(x[i])));
      const double error = slope_of(slope[i]) - gelu_gradient_of(x[i]);
      worst = std::max(worst, std::fabs(error) - sizes[i]);
      sum += error * kSlopeSteps;
      squares += error * error * kSlopeSteps * kSlopeSteps;
    }
    CHECK(worst < 0.51 / kSlopeSteps);
    CHECK(std::fabs(sum) < 0.1 * static_cast<double>(x.size()));
    CHECK(squares < 0.6 * 0.6 * static_cast<double>(x.size()));
    check_codes(f.gelu.data.download(), gelu, sizes, Fp8Format::e4m3, Forward::kGeluScale, kShare);
    f.gelu.meta.check(quantized(gelu, Fp8Format::e4m3, Forward::kGeluScale).counts, kTolerance, kCountShare);
    CHECK(poisoned(f.gelu.transposed));
  }
}

TEST_CASE("an activation that overflowed leaves a NaN, which the guard will see") {
  TestDevice device;
  for (const Shape& s : {Shape{256, 768, 384}, Shape{256, 1600, 256}}) {
    if (!has_fused(device, s)) return;
    for (const float infinity : {INFINITY, -INFINITY}) {
      Forward f(s);
      f.bias[100] = infinity;
      f.gpu_bias.upload(to_bf16(f.bias));
      f.run(device.cuda);
      const std::vector<uint8_t> codes = f.gelu.data.download();
      CHECK(std::any_of(codes.begin(), codes.end(), [](uint8_t code) { return (code & 0x7F) == 0x7F; }));
    }
  }
}

TEST_CASE("backward: the gradient both ways round, GELU's codes transposed, the bias gradient") {
  TestDevice device;
  for (const Shape& s : tested(kShapes)) {
    if (!has_fused(device, s)) return;
    for (const Fp8Format format : kFormats) {
      CAPTURE(describe(s.rows, s.C, format));
      Backward b(s, format);
      b.run(device.cuda);
      std::vector<double> values(b.x.size()), sizes(b.x.size());
      multiply_add(values, b.dout.values, b.weight_t.values, s.rows, s.OC, s.C);
      multiply_add(sizes, absolute(b.dout.values), absolute(b.weight_t.values), s.rows, s.OC, s.C);
      std::vector<float> dbias = b.initial;
      for (size_t i = 0; i < values.size(); ++i) {
        const double slope = slope_of(b.slope[i]);
        values[i] *= slope;
        sizes[i] *= std::fabs(slope) * 0x1p-10;
        dbias[i % dbias.size()] += static_cast<float>(values[i]);
      }
      const std::vector<float> dx(values.begin(), values.end());
      check_codes(b.dx.data.download(), dx, sizes, format, b.scale, kShare);
      b.dx.check_transpose();
      b.dx.meta.check(quantized(dx, format, b.scale).counts, kTolerance, kCountShare);
      CHECK(relative_error(b.dbias.download(), dbias) < kTolerance);
      CHECK(same_bits(b.gelu_t.download(), transpose(b.codes, s.rows, s.OC)));
    }
  }
}

TEST_CASE("close to the two kernels that are replaced, and the same bits every time") {
  TestDevice device;
  for (const Shape& s : tested(kRepeated)) {
    if (!has_fused(device, s)) return;
    CAPTURE(describe(s.rows, s.C, Fp8Format::e5m2));
    {
      Forward f(s);
      DeviceBuffer<bf16> pre(f.slope.size());
      CodeBuffers replaced(s.rows, s.OC, Forward::kGeluScale);
      gemm_forward_fp8(device.cuda, {.out = pre,
                                     .in = f.in.tensor(),
                                     .weight = f.weight.tensor(),
                                     .bias = f.gpu_bias,
                                     .rows = s.rows,
                                     .C = s.C,
                                     .OC = s.OC});
      gelu_forward_fp8(device.cuda,
                       {.out = replaced.data_only(Fp8Format::e4m3), .in = pre, .rows = s.rows, .cols = s.OC});
      f.run(device.cuda);
      const auto slope = f.slope.download();
      const auto codes = f.gelu.data.download();
      check_codes(codes, replaced.data.download(), kShareOfReplaced);
      CHECK(std::fabs(f.gelu.meta.amax() / replaced.meta.amax() - 1) < kTolerance);
      for (int again = 0; again < repeats_of(s); ++again) {
        f.slope.poison();
        f.gelu.data.poison();
        f.run(device.cuda);
        CHECK(same_bits(f.slope.download(), slope));
        CHECK(same_bits(f.gelu.data.download(), codes));
      }
    }
    Backward b(s, Fp8Format::e5m2);
    CodeBuffers replaced(s.rows, s.OC, b.scale), gelu(s.rows, s.OC, Forward::kGeluScale);
    DeviceBuffer<float> dbias(b.initial);
    DeviceBuffer<bf16> product(b.x.size()), pre(to_bf16(b.x));
    gemm_backward_input_fp8(device.cuda, {.din = product,
                                          .dout = b.dout.tensor(),
                                          .weight_t = b.weight_t.tensor(),
                                          .rows = s.rows,
                                          .C = s.OC,
                                          .OC = s.C});
    gelu_backward_fp8(device.cuda, {.din = replaced.sink(b.format),
                                    .out = gelu.transposed_only(Fp8Format::e4m3, Fp8Statistics::none),
                                    .dbias = dbias,
                                    .dout = product,
                                    .in = pre,
                                    .rows = s.rows,
                                    .cols = s.OC});
    b.run(device.cuda);
    const auto codes = b.dx.data.download(), codes_t = b.dx.transposed.download(), gelu_t = b.gelu_t.download();
    const auto sums = b.dbias.download();
    CHECK(distance(codes, replaced.data.download()).share < kShareOfReplaced);
    CHECK(relative_error(decoded(codes, b.format), decoded(replaced.data.download(), b.format)) < 5e-2);
    CHECK(same_bits(codes_t, transpose(codes, s.rows, s.OC)));
    CHECK(std::fabs(b.dx.meta.amax() / replaced.meta.amax() - 1) < kTolerance);
    CHECK(relative_error(sums, dbias.download()) < kTolerance);
    for (int again = 0; again < repeats_of(s); ++again) {
      b.dx.data.poison();
      b.dx.transposed.poison();
      b.gelu_t.poison();
      b.dbias.upload(b.initial);
      b.run(device.cuda);
      CHECK(same_bits(b.dx.data.download(), codes));
      CHECK(same_bits(b.dx.transposed.download(), codes_t));
      CHECK(same_bits(b.gelu_t.download(), gelu_t));
      CHECK(same_bits(b.dbias.download(), sums));
    }
  }
}

} // namespace gpt2
