// LayerNorm on the GPU against the CPU reference.
#include "kernels/layernorm.h"

#include <string>

#include "kernels/layernorm_backward.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {
namespace {

constexpr double kBf16Tolerance = 3e-3; // a BF16 result of FP32 arithmetic: its rounding alone is 1.7e-3 in norm
constexpr double kFp32Tolerance = 5e-5; // FP32 sums of up to 22,000 terms in another order

struct Shape {
  int64_t rows;
  int C;
  int64_t elements() const { return rows * C; }
};

// Every width of GPT-2, widths that leave lanes idle, rows that leave warps idle. The last seven give the blocks of an
// H200 more than one tile each.
const Shape kShapes[] = {{1, 64},      {7, 768},     {130, 1024},  {1000, 768}, {130, 1280}, {1000, 1600},
                         {5, 8},       {33, 40},     {9, 4096},    {9001, 8},   {22001, 64}, {9001, 768},
                         {9001, 1024}, {9001, 1280}, {9001, 1600}, {9001, 4096}};

struct Layer { // the same numbers on both sides
  explicit Layer(const Shape& shape)
      : rows(shape.rows),
        C(shape.C),
        size(static_cast<size_t>(rows * C)),
        x(random_values(size, 1, 1.0f, 0.5f)),
        branch(random_values(size, 2)),
        weight(between_bf16(random_values(static_cast<size_t>(C), 3, 0.2f, 1.0f))),
        bias(between_bf16(random_values(static_cast<size_t>(C), 4, 0.3f))),
        dout(random_values(size, 5)),
        gpu_x(to_bf16(x)),
        gpu_branch(to_bf16(branch)),
        gpu_weight(weight),
        gpu_bias(bias),
        gpu_dout(to_bf16(dout)),
        mean(static_cast<size_t>(rows)),
        rstd(static_cast<size_t>(rows)) {}

  // LayerNorm of `input` on the CPU; fills mean and rstd.
  std::vector<float> normalize(Cpu& cpu, const std::vector<float>& input) {
    std::vector<float> out(size);
    layernorm_forward(cpu, LayerNormForward<float>{out.data(), nullptr, mean.data(), rstd.data(), input.data(), nullptr,
                                                   weight.data(), bias.data(), rows, C});
    return out;
  }

  int64_t rows;
  int C;
  size_t size;
  std::vector<float> x, branch, weight, bias, dout;
  DeviceBuffer<bf16> gpu_x, gpu_branch;
  DeviceBuffer<float> gpu_weight, gpu_bias;
  DeviceBuffer<bf16> gpu_dout;
  std::vector<float> mean, rstd;
};

std::string name_of(const Shape& s) { return "rows=" + std::to_string(s.rows) + " C=" + std::to_string(s.C); }

struct Gradients { // what a backward pass adds to, and what it started from
  explicit Gradients(const Layer& layer)
      : initial(random_values(static_cast<size_t>(layer.C), 7, 2.0f)),
        dweight(initial),
        dbias(initial),
        dbranch(initial) {}
  std::vector<float> initial;
  DeviceBuffer<float> dweight, dbias, dbranch;
};

} // namespace

TEST_CASE("forward adds the branch, rounds the stream and normalizes what it rounded") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    CAPTURE(name_of(shape));
    Layer layer(shape);
    std::vector<float> sum(layer.size);
    for (size_t i = 0; i < layer.size; ++i) sum[i] = layer.x[i] + layer.branch[i];
    const std::vector<bf16> stream = to_bf16(sum);
    const std::vector<float> expected = layer.normalize(device.cpu, to_float(stream));

    DeviceBuffer<bf16> out(layer.size), residual(layer.size);
    DeviceBuffer<float> mean(layer.mean.size()), rstd(layer.mean.size());
    layernorm_forward(device.cuda, LayerNormForward<bf16>{out, residual, mean, rstd, layer.gpu_x, layer.gpu_branch,
                                                          layer.gpu_weight, layer.gpu_bias, layer.rows, layer.C});
    CHECK(same_bits(residual.download(), stream));
    CHECK(relative_error(download_floats(out), expected) < kBf16Tolerance);
    CHECK(relative_error(mean.download(), layer.mean) < kFp32Tolerance);
    CHECK(relative_error(rstd.download(), layer.rstd) < kFp32Tolerance);
  }
}

TEST_CASE("forward without a branch leaves the residual output alone") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    CAPTURE(name_of(shape));
    Layer layer(shape);
    const std::vector<float> expected = layer.normalize(device.cpu, layer.x);
    DeviceBuffer<bf16> out(layer.size), residual(layer.size);
    const std::vector<bf16> poison = residual.download();
    DeviceBuffer<float> mean(layer.mean.size()), rstd(layer.mean.size());
    layernorm_forward(device.cuda, LayerNormForward<bf16>{out, residual, mean, rstd, layer.gpu_x, nullptr,
                                                          layer.gpu_weight, layer.gpu_bias, layer.rows, layer.C});
    CHECK(relative_error(download_floats(out), expected) < kBf16Tolerance);
    CHECK(same_bits(residual.download(), poison));
  }
}

TEST_CASE("a mean far above the deviation costs no accuracy") {
  TestDevice device;
  const int C = 768;
  const std::vector<float> x = random_values(C, 1, 1.0f, 200.0f), one(C, 1.0f), zero(C, 0.0f);
  std::vector<float> expected(C), mean(1), rstd(1);
  layernorm_forward(device.cpu, LayerNormForward<float>{expected.data(), nullptr, mean.data(), rstd.data(), x.data(),
                                                        nullptr, one.data(), zero.data(), 1, C});
  DeviceBuffer<bf16> gpu_x(to_bf16(x)), out(C);
  DeviceBuffer<float> gpu_one(one), gpu_zero(zero), gpu_mean(1), gpu_rstd(1);
  layernorm_forward(device.cuda,
                    LayerNormForward<bf16>{out, nullptr, gpu_mean, gpu_rstd, gpu_x, nullptr, gpu_one, gpu_zero, 1, C});
  CHECK(relative_error(download_floats(out), expected) < kBf16Tolerance);
  CHECK(relative_error(gpu_rstd.download(), rstd) < 1e-4);
}

TEST_CASE("backward agrees with the CPU, adding to the residual gradient or replacing it") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    for (const bool accumulate : {true, false}) {
      CAPTURE(name_of(shape));
      CAPTURE(accumulate);
      Layer layer(shape);
      layer.normalize(device.cpu, layer.x);
      const std::vector<float> before = random_values(layer.size, 6);
      Gradients gradients(layer);
      std::vector<float> dresidual = before, dweight = gradients.initial, dbias = dweight, dbranch = dweight;
      layernorm_backward(
          device.cpu, LayerNormBackward<float>{dresidual.data(), dweight.data(), dbias.data(), dbranch.data(),
                                               layer.dout.data(), layer.x.data(), layer.weight.data(),
                                               layer.mean.data(), layer.rstd.data(), layer.rows, layer.C, accumulate});

      DeviceBuffer<bf16> gpu_dresidual(layer.size); // NaN where it must not be read
      if (accumulate) gpu_dresidual.upload(to_bf16(before));
      DeviceBuffer<float> mean(layer.mean), rstd(layer.rstd);
      layernorm_backward(
          device.cuda,
          LayerNormBackward<bf16>{gpu_dresidual, gradients.dweight, gradients.dbias, gradients.dbranch, layer.gpu_dout,
                                  layer.gpu_x, layer.gpu_weight, mean, rstd, layer.rows, layer.C, accumulate});
      CHECK(relative_error(download_floats(gpu_dresidual), dresidual) < kBf16Tolerance);
      CHECK(relative_error(gradients.dweight.download(), dweight) < kFp32Tolerance);
      CHECK(relative_error(gradients.dbias.download(), dbias) < kFp32Tolerance);
      CHECK(relative_error(gradients.dbranch.download(), dbranch) < kFp32Tolerance);
    }
  }
}

TEST_CASE("backward without a branch bias, and twice with the same bits") {
  TestDevice device;
  Layer layer({1000, 768});
  layer.normalize(device.cpu, layer.x);
  DeviceBuffer<float> mean(layer.mean), rstd(layer.rstd);
  std::vector<std::vector<float>> dweights;
  std::vector<std::vector<bf16>> dresiduals;
  for (const bool with_branch_bias : {true, false}) {
    Gradients gradients(layer);
    DeviceBuffer<bf16> dresidual(layer.size);
    layernorm_backward(device.cuda,
                       LayerNormBackward<bf16>{dresidual, gradients.dweight, gradients.dbias,
                                               with_branch_bias ? gradients.dbranch.get() : nullptr, layer.gpu_dout,
                                               layer.gpu_x, layer.gpu_weight, mean, rstd, layer.rows, layer.C, false});
    dweights.push_back(gradients.dweight.download());
    dresiduals.push_back(dresidual.download());
    CHECK(same_bits(gradients.dbranch.download(), gradients.initial) == !with_branch_bias);
  }
  CHECK(same_bits(dweights[0], dweights[1]));
  CHECK(same_bits(dresiduals[0], dresiduals[1]));
}

TEST_CASE("a NaN stays in its row") {
  TestDevice device;
  Layer layer({7, 768});
  std::vector<float> x = layer.x;
  x[3 * 768 + 5] = std::numeric_limits<float>::quiet_NaN();
  DeviceBuffer<bf16> gpu_x(to_bf16(x)), out(layer.size);
  DeviceBuffer<float> mean(7), rstd(7);
  layernorm_forward(device.cuda, LayerNormForward<bf16>{out, nullptr, mean, rstd, gpu_x, nullptr, layer.gpu_weight,
                                                        layer.gpu_bias, 7, 768});
  const std::vector<float> values = download_floats(out);
  for (size_t i = 0; i < values.size(); ++i) CHECK(std::isnan(values[i]) == (i / 768 == 3));
}

TEST_CASE("widths that the kernel cannot hold are refused by name") {
  TestDevice device;
  Layer layer({1, 64});
  DeviceBuffer<bf16> out(8192);
  DeviceBuffer<float> mean(1), rstd(1);
  for (const int C : {60, 8192}) {
    CHECK_THROWS_AS(
        layernorm_forward(device.cuda, LayerNormForward<bf16>{out, nullptr, mean, rstd, layer.gpu_x, nullptr,
                                                              layer.gpu_weight, layer.gpu_bias, 1, C}),
        Error);
  }
}

} // namespace gpt2
