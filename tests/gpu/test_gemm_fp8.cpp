// The FP8 products against the product of the dequantized operands, in double.
#include "kernels/gemm_fp8.h"

#include <algorithm>

#include "kernels/sm90/gemm_fp8_weight_stationary.h"
#include "tests/gpu/fp8_matrix.h"

namespace gpt2 {
namespace {

// The operands are exact; what differs is the result's rounding to BF16 (1.7e-3 in norm) and the tensor core's fast
// accumulation, which keeps some 14 bits: a bias of up to 2^-14 for every 32 terms added, 3e-3 at K = 1600.
constexpr double kTolerance = 1e-2;

struct Shape {
  int64_t rows;
  int C, OC;
  int64_t elements() const { return std::max({rows * C, rows * OC, int64_t{C} * OC}); }
};

const Shape kShapes[] = {{64, 768, 768},  {48, 80, 208},  {16, 1600, 1600}, {48, 1024, 272},
                         {144, 1280, 80}, {256, 64, 192}, {16, 16, 16}};

struct Formats {
  Fp8Format in, weight, dout;
};

// The recipes': hybrid, e4m3, and e5m2's forward.
const Formats kRecipes[] = {{Fp8Format::e4m3, Fp8Format::e4m3, Fp8Format::e5m2},
                            {Fp8Format::e4m3, Fp8Format::e4m3, Fp8Format::e4m3},
                            {Fp8Format::e5m2, Fp8Format::e4m3, Fp8Format::e5m2}};

std::vector<float> to_floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

} // namespace

TEST_CASE("all three products, in every pair of formats") {
  TestDevice device;
  if (!has_fp8(device)) return;
  for (const Shape& s : tested(kShapes)) {
    for (const Formats& formats : kRecipes) {
      CAPTURE(s.rows);
      CAPTURE(s.C);
      CAPTURE(s.OC);
      CAPTURE(to_string(formats.in));
      CAPTURE(to_string(formats.dout));
      const size_t in_size = static_cast<size_t>(s.rows * s.C), out_size = static_cast<size_t>(s.rows * s.OC);
      Fp8Matrix in(s.rows, s.C, formats.in, 1, 1.0f), weight(s.OC, s.C, formats.weight, 2, 0.02f);
      Fp8Matrix dout(s.rows, s.OC, formats.dout, 3, 1e-3f);
      const std::vector<float> bias = random_values(static_cast<size_t>(s.OC), 4, 0.1f);
      DeviceBuffer<bf16> gpu_bias(to_bf16(bias));

      const std::vector<float> residual = random_values(out_size, 5);
      DeviceBuffer<bf16> gpu_residual(to_bf16(residual));
      for (const auto& [with_bias, with_residual] : {std::pair{false, false}, {true, false}, {true, true}}) {
        std::vector<double> expected(out_size, 0.0);
        for (size_t i = 0; i < out_size; ++i)
          expected[i] = (with_bias ? bias[i % bias.size()] : 0) + (with_residual ? residual[i] : 0);
        multiply_add(expected, in.values, weight.values, s.rows, s.OC, s.C);
        DeviceBuffer<bf16> out(out_size);
        gemm_forward_fp8(device.cuda, {.out = out,
                                       .in = in.tensor(),
                                       .weight = weight.tensor(),
                                       .bias = with_bias ? gpu_bias.get() : nullptr,
                                       .rows = s.rows,
                                       .C = s.C,
                                       .OC = s.OC,
                                       .residual = with_residual ? gpu_residual.get() : nullptr});
        CHECK(relative_error(download_floats(out), to_floats(expected)) < kTolerance);
      }

      std::vector<double> din(in_size, 0.0);
      multiply_add(din, dout.values, transpose(weight.values, s.OC, s.C), s.rows, s.C, s.OC);
      DeviceBuffer<bf16> gpu_din(in_size);
      gemm_backward_input_fp8(
          device.cuda,
          {.din = gpu_din, .dout = dout.tensor(), .weight_t = weight.tensor_t(), .rows = s.rows, .C = s.C, .OC = s.OC});
      CHECK(relative_error(download_floats(gpu_din), to_floats(din)) < kTolerance);

      if (formats.in == Fp8Format::e5m2) continue; // E5M2 x E5M2 does not exist: that recipe has an E4M3 copy here
      const std::vector<float> before = random_values(weight.values.size(), 5, 0.02f);
      std::vector<double> dweight(before.begin(), before.end());
      DeviceBuffer<float> gpu_dweight(before);
      for (int micro_step = 0; micro_step < 2; ++micro_step) { // the first call may tune: it must not add twice
        multiply_add(dweight, transpose(dout.values, s.rows, s.OC), transpose(in.values, s.rows, s.C), s.OC, s.C,
                     s.rows);
        gemm_backward_weight_fp8(device.cuda, {.dweight = gpu_dweight,
                                               .dout_t = dout.tensor_t(),
                                               .in_t = in.tensor_t(),
                                               .rows = s.rows,
                                               .C = s.C,
                                               .OC = s.OC});
        CHECK(relative_error(gpu_dweight.download(), to_floats(dweight)) < kTolerance);
      }
    }
  }
}

TEST_CASE("the kernel of ours for K = 768, 1024 and 1280, with bias, and added to a residual") {
  TestDevice device;
  if (!has_fp8(device)) return;
  const GemmKernel kernel = sm90::gemm_fp8_weight_stationary();
  for (const Shape& s : tested({Shape{128, 768, 384}, Shape{384, 768, 2304}, Shape{128, 1024, 256},
                                Shape{640, 1024, 1024}, Shape{384, 1280, 512}, Shape{128, 768, 26112}})) { // 136 panels
    for (const Fp8Format format : kFormats) {
      for (const bool full : {false, true}) { // bias and residual
        CAPTURE(describe(s.rows, s.OC, format));
        Fp8Matrix in(s.rows, s.C, format, 1, 1.0f), weight(s.OC, s.C, Fp8Format::e4m3, 2, 0.02f);
        const std::vector<float> bias = random_values(static_cast<size_t>(s.OC), 4, 0.1f);
        const std::vector<float> residual = random_values(static_cast<size_t>(s.rows * s.OC), 5);
        DeviceBuffer<bf16> gpu_bias(to_bf16(bias)), gpu_residual(to_bf16(residual)), out(residual.size());
        const GemmProblem product{.transpose_a = true,
                                  .m = s.OC,
                                  .n = s.rows,
                                  .k = s.C,
                                  .a = GemmType::e4m3,
                                  .b = format == Fp8Format::e4m3 ? GemmType::e4m3 : GemmType::e5m2,
                                  .epilogue = full ? GemmEpilogue::bias : GemmEpilogue::none,
                                  .residual = full,
                                  .fast_accumulation = true};
        if (!kernel.can_implement(*device.cuda.device, product)) {
          CHECK(!device.cuda.device->sm90_kernels);
          continue;
        }
        kernel.launch(device.cuda, product,
                      {.d = out,
                       .a = weight.data->get(),
                       .b = in.data->get(),
                       .c = full ? gpu_residual.get() : nullptr,
                       .bias = full ? gpu_bias.get() : nullptr,
                       .a_scale = &static_cast<Fp8TensorMeta*>(weight.meta)->scale_inv,
                       .b_scale = &static_cast<Fp8TensorMeta*>(in.meta)->scale_inv});
        std::vector<double> expected(static_cast<size_t>(s.rows * s.OC));
        for (size_t i = 0; i < expected.size(); ++i)
          expected[i] = full ? bias[i % static_cast<size_t>(s.OC)] + residual[i] : 0.0;
        multiply_add(expected, in.values, weight.values, s.rows, s.OC, s.C);
        CHECK(relative_error(to_float(out.download()), to_floats(expected)) < kTolerance);
      }
    }
  }
}

TEST_CASE("the scale is read when the product runs, not when it is planned") {
  TestDevice device;
  if (!has_fp8(device)) return;
  Fp8Matrix in(64, 768, Fp8Format::e4m3, 1, 1.0f), weight(768, 768, Fp8Format::e4m3, 2, 0.02f);
  DeviceBuffer<bf16> out(64 * 768);
  const GemmForwardFp8 product{
      .out = out, .in = in.tensor(), .weight = weight.tensor(), .bias = nullptr, .rows = 64, .C = 768, .OC = 768};
  gemm_forward_fp8(device.cuda, product);
  std::vector<float> expected = download_floats(out);
  for (float& value : expected) value *= 4;
  Fp8TensorMeta coarser = in.meta.read();
  coarser.scale_inv *= 4; // a power of two: the same bits but for the exponent
  CUDA_CHECK(cudaMemcpy(in.meta, &coarser, sizeof coarser, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaDeviceSynchronize());
  gemm_forward_fp8(device.cuda, product);
  CHECK(relative_error(download_floats(out), expected) < 1e-6);
}

} // namespace gpt2
