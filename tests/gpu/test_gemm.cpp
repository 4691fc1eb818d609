// The linear layer on the GPU against the CPU reference.
#include "kernels/gemm.h"

#include <algorithm>
#include <functional>

#include "kernels/cuda/gemm_plans.h"
#include "kernels/gelu.h"
#include "kernels/sm90/wgrad_gemm_splitk.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {
namespace {

// A BF16 result of exact FP32 sums differs by its rounding: 2^-9 at most, 1.7e-3 in norm.
constexpr double kBf16Tolerance = 3e-3;
constexpr double kFp32Tolerance = 1e-4; // FP32 sums in another order

struct Shape {
  int64_t rows;
  int C, OC;
  int64_t elements() const { return std::max({rows * C, rows * OC, int64_t{C} * OC}); }
};

// QKV of every GPT-2 width, both MLP products, the LM head, and sizes that are not nice.
const Shape kShapes[] = {{256, 768, 2304}, {128, 1024, 3072}, {128, 1280, 1280}, {128, 1600, 6400}, {128, 6400, 1600},
                         {64, 768, 50304}, {96, 80, 208},     {1, 64, 64},       {100, 48, 24}};

struct Layer { // the same numbers on both sides
  explicit Layer(const Shape& s, uint64_t seed = 1)
      : shape(s),
        in(random_values(static_cast<size_t>(s.rows * s.C), seed)),
        weight(random_values(static_cast<size_t>(s.C) * s.OC, seed + 1, 0.1f)),
        bias(random_values(static_cast<size_t>(s.OC), seed + 2)),
        dout(random_values(static_cast<size_t>(s.rows * s.OC), seed + 3)),
        gpu_in(to_bf16(in)),
        gpu_weight(to_bf16(weight)),
        gpu_bias(to_bf16(bias)),
        gpu_dout(to_bf16(dout)) {}

  GemmForward<bf16> forward(bf16* out, bool with_bias) {
    return {out, gpu_in, gpu_weight, with_bias ? gpu_bias.get() : nullptr, shape.rows, shape.C, shape.OC};
  }
  GemmForward<float> forward(std::vector<float>& out, bool with_bias) {
    return {out.data(), in.data(), weight.data(), with_bias ? bias.data() : nullptr, shape.rows, shape.C, shape.OC};
  }
  size_t in_size() const { return in.size(); }
  size_t out_size() const { return dout.size(); }

  Shape shape;
  std::vector<float> in, weight, bias, dout;
  DeviceBuffer<bf16> gpu_in, gpu_weight, gpu_bias, gpu_dout;
};

GemmProblem weight_gradient(const Shape& shape) {
  return {.transpose_b = true, .m = shape.C, .n = shape.OC, .k = shape.rows, .d = GemmType::fp32, .accumulate = true};
}

struct Graph { // what `enqueue` puts on the stream, to be launched any number of times
  Graph(const CudaStream& cuda, const std::function<void()>& enqueue) : stream(cuda.stream) {
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  }
  ~Graph() {
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
  Graph(const Graph&) = delete;
  void launch() const { CUDA_CHECK(cudaGraphLaunch(executable, stream)); }

  cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
};

std::string name_of(const Shape& s) {
  return "rows=" + std::to_string(s.rows) + " C=" + std::to_string(s.C) + " OC=" + std::to_string(s.OC);
}

} // namespace

TEST_CASE("forward agrees with the CPU, with and without bias") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    CAPTURE(name_of(shape));
    Layer layer(shape);
    for (bool with_bias : {true, false}) {
      DeviceBuffer<bf16> out(layer.out_size());
      std::vector<float> expected(layer.out_size());
      gemm_forward(device.cpu, layer.forward(expected, with_bias));
      for (int call = 0; call < 2; ++call) { // the first call tunes, the second runs the plan
        out.poison();
        gemm_forward(device.cuda, layer.forward(out.get(), with_bias));
        CHECK(relative_error(download_floats(out), expected) < kBf16Tolerance);
      }
    }
  }
}

TEST_CASE("the input's gradient agrees with the CPU") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    CAPTURE(name_of(shape));
    Layer layer(shape);
    DeviceBuffer<bf16> din(layer.in_size());
    std::vector<float> expected(layer.in_size());
    gemm_backward_input(device.cpu, GemmBackwardInput<float>{expected.data(), layer.dout.data(), layer.weight.data(),
                                                             shape.rows, shape.C, shape.OC});
    gemm_backward_input(device.cuda,
                        GemmBackwardInput<bf16>{din, layer.gpu_dout, layer.gpu_weight, shape.rows, shape.C, shape.OC});
    CHECK(relative_error(download_floats(din), expected) < kBf16Tolerance);
  }
}

TEST_CASE("the weight's gradient accumulates in FP32, tuning included") {
  TestDevice device;
  for (const Shape& shape : tested(kShapes)) {
    CAPTURE(name_of(shape));
    Layer layer(shape);
    std::vector<float> expected = random_values(layer.weight.size(), 9, 3.0f);
    DeviceBuffer<float> dweight(expected);
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      gemm_backward_weight(device.cpu, GemmBackwardWeight<float>{expected.data(), layer.dout.data(), layer.in.data(),
                                                                 shape.rows, shape.C, shape.OC});
      gemm_backward_weight(
          device.cuda, GemmBackwardWeight<bf16>{dweight, layer.gpu_dout, layer.gpu_in, shape.rows, shape.C, shape.OC});
      CHECK(relative_error(dweight.download(), expected) < kFp32Tolerance);
    }
  }
}

TEST_CASE("sizes and addresses that no kernel likes still work") {
  TestDevice device;
  const Shape shape{48, 72, 331};
  Layer layer(shape);
  DeviceBuffer<bf16> out(layer.out_size());
  std::vector<float> expected(layer.out_size());
  gemm_forward(device.cpu, layer.forward(expected, false));
  gemm_forward(device.cuda, layer.forward(out.get(), false));
  CHECK(relative_error(download_floats(out), expected) < kBf16Tolerance);

  // Rows 1.. of the same matrices: 144 bytes further, so aligned to 16 only.
  const int64_t rows = shape.rows - 1;
  DeviceBuffer<bf16> shifted_out(static_cast<size_t>(rows * 72));
  std::vector<float> shifted_expected(static_cast<size_t>(rows * 72));
  const std::vector<float> weight(layer.weight.begin(), layer.weight.begin() + 72 * 72);
  gemm_forward(device.cpu,
               GemmForward<float>{shifted_expected.data(), layer.in.data() + 72, weight.data(), nullptr, rows, 72, 72});
  gemm_forward(device.cuda,
               GemmForward<bf16>{shifted_out, layer.gpu_in.get() + 72, layer.gpu_weight, nullptr, rows, 72, 72});
  CHECK(relative_error(download_floats(shifted_out), shifted_expected) < kBf16Tolerance);
  CHECK(device.cuda.device->gemms->to_text().find("_unaligned") != std::string::npos);
}

TEST_CASE("GELU in the epilogue is the tanh form") {
  TestDevice device;
  for (const Shape& shape : tested({Shape{256, 768, 3072}, Shape{96, 80, 208}})) {
    CAPTURE(name_of(shape));
    Layer layer(shape);
    DeviceBuffer<bf16> out(layer.out_size()), pre(layer.out_size());
    std::vector<float> expected_pre(layer.out_size()), expected(layer.out_size());
    gemm_forward(device.cpu, layer.forward(expected_pre, true));
    gelu_forward(device.cpu, GeluForward<float>{expected.data(), expected_pre.data(), shape.rows, shape.OC});
    gemm_forward_gelu(device.cuda,
                      {out, pre, layer.gpu_in, layer.gpu_weight, layer.gpu_bias, shape.rows, shape.C, shape.OC});
    CHECK(relative_error(download_floats(pre), expected_pre) < kBf16Tolerance);
    CHECK(relative_error(download_floats(out), expected) < 1e-2);
  }
}

TEST_CASE("weight gradients repeat bit for bit") {
  TestDevice device;
  Layer layer({4096, 768, 768}); // few output tiles, long sums: where split-K would be chosen
  std::vector<std::vector<float>> results;
  for (int run = 0; run < 3; ++run) {
    DeviceBuffer<float> dweight(std::vector<float>(layer.weight.size(), 0.0f));
    gemm_backward_weight(device.cuda, GemmBackwardWeight<bf16>{dweight, layer.gpu_dout, layer.gpu_in, 4096, 768, 768});
    results.push_back(dweight.download());
  }
  CHECK(same_bits(results[0], results[1]));
  CHECK(same_bits(results[0], results[2]));
}

TEST_CASE("Hopper's kernel for weight gradients, its last tiles shared out among clusters") {
  TestDevice device;
  const GemmKernel kernel = sm90::wgrad_gemm_splitk();
  // On an H200, of 66 clusters. Nothing shared out: one piece of one tile; a last tile of 64 rows; 125 tiles, K too
  // short. One tile in 11 parts and its last piece; 20 tiles in three parts and 4 last pieces; 29 of 95 in two; 14 of
  // 80 in four; 59 of 125 in one, and their last 9 pieces for 7 clusters, D packed along columns and along rows.
  for (const Shape& shape : tested({Shape{64, 320, 64}, Shape{192, 640, 1600}, Shape{128, 6400, 1600},
                                    Shape{768, 320, 64}, Shape{8192, 1280, 1280}, Shape{4160, 1600, 4800},
                                    Shape{8192, 1280, 5120}, Shape{9856, 1600, 6400}, Shape{9856, 6400, 1600}})) {
    CAPTURE(name_of(shape));
    Layer layer(shape);
    const GemmProblem product = weight_gradient(shape);
    if (!kernel.can_implement(*device.cuda.device, product)) {
      CHECK(!device.cuda.device->sm90_kernels);
      continue;
    }
    const std::vector<float> before = random_values(layer.weight.size(), 9, 3.0f);
    std::vector<float> expected = before;
    std::vector<std::vector<float>> results;
    for (int run = 0; run < 3; ++run) {
      DeviceBuffer<float> dweight(before);
      CUDA_CHECK(cudaMemsetAsync(device.cuda.scratch_base, 0xFF, device.cuda.scratch_bytes, device.cuda.stream)); // NaN
      kernel.launch(device.cuda, product, {.d = dweight.get(), .a = layer.gpu_in.get(), .b = layer.gpu_dout.get()});
      results.push_back(dweight.download());
    }
    gemm_backward_weight(device.cpu, GemmBackwardWeight<float>{expected.data(), layer.dout.data(), layer.in.data(),
                                                               shape.rows, shape.C, shape.OC});
    CHECK(relative_error(results[0], expected) < kFp32Tolerance);
    CHECK(same_bits(results[0], results[1]));
    CHECK(same_bits(results[0], results[2]));
  }
}

TEST_CASE("Hopper's kernel for weight gradients leaves others' products alone") {
  TestDevice device;
  const GemmKernel kernel = sm90::wgrad_gemm_splitk();
  const bool hopper = device.cuda.device->sm90_kernels;
  const auto can_implement = [&](auto&& change) {
    GemmProblem product = weight_gradient({4096, 1280, 1280});
    change(product);
    return kernel.can_implement(*device.cuda.device, product);
  };
  CHECK(can_implement([](GemmProblem&) {}) == hopper);
  CHECK(!can_implement([](GemmProblem& p) { p.k = 1056; }));      // half a piece
  CHECK(!can_implement([](GemmProblem& p) { p.m = p.n = 768; })); // no side of whole tiles
  CHECK(!can_implement([](GemmProblem& p) { p.n = 1000; }));      // the other side is not one of blocks
  CHECK(!can_implement([](GemmProblem& p) { p.k = int64_t{1} << 30; }));
  CHECK(!can_implement([](GemmProblem& p) { p.accumulate = false; }));
  CHECK(!can_implement([](GemmProblem& p) { p.residual = true; }));
  CHECK(!can_implement([](GemmProblem& p) { p.epilogue = GemmEpilogue::bias; }));
  CHECK(!can_implement([](GemmProblem& p) { p.d = GemmType::bf16; }));
  CHECK(!can_implement([](GemmProblem& p) { p.a = GemmType::e4m3; }));
  CHECK(!can_implement([](GemmProblem& p) { p.b = GemmType::e5m2; }));
  CHECK(!can_implement([](GemmProblem& p) { p.transpose_a = true; }));
  CHECK(!can_implement([](GemmProblem& p) { p.transpose_b = false; }));
}

TEST_CASE("Hopper's kernel for weight gradients in a graph, replayed") {
  TestDevice device;
  const GemmKernel kernel = sm90::wgrad_gemm_splitk();
  const Shape shape{768, 320, 64};
  const GemmProblem product = weight_gradient(shape);
  if (!kernel.can_implement(*device.cuda.device, product)) return;
  Layer layer(shape);
  DeviceBuffer<float> dweight(std::vector<float>(layer.weight.size(), 0.0f));
  const Graph graph(device.cuda, [&] {
    kernel.launch(device.cuda, product, {.d = dweight.get(), .a = layer.gpu_in.get(), .b = layer.gpu_dout.get()});
  });
  std::vector<float> expected(layer.weight.size());
  for (int replay = 0; replay < 3; ++replay) {
    graph.launch();
    gemm_backward_weight(device.cpu, GemmBackwardWeight<float>{expected.data(), layer.dout.data(), layer.in.data(),
                                                               shape.rows, shape.C, shape.OC});
    CHECK(relative_error(dweight.download(), expected) < kFp32Tolerance);
  }
}

TEST_CASE("products can be captured in a graph, planned before or not") {
  TestDevice device;
  Layer layer({128, 768, 768});
  DeviceBuffer<bf16> out(layer.out_size()), din(layer.in_size());
  std::vector<float> expected(layer.out_size()), expected_din(layer.in_size());
  gemm_forward(device.cpu, layer.forward(expected, true));
  gemm_backward_input(
      device.cpu, GemmBackwardInput<float>{expected_din.data(), layer.dout.data(), layer.weight.data(), 128, 768, 768});
  gemm_forward(device.cuda, layer.forward(out.get(), true));
  CUDA_CHECK(cudaStreamSynchronize(device.cuda.stream));
  out.poison();

  const Graph graph(device.cuda, [&] {
    gemm_forward(device.cuda, layer.forward(out.get(), true));
    gemm_backward_input(device.cuda, GemmBackwardInput<bf16>{din, layer.gpu_dout, layer.gpu_weight, 128, 768, 768});
  });
  graph.launch();
  CHECK(relative_error(download_floats(out), expected) < kBf16Tolerance);
  CHECK(relative_error(download_floats(din), expected_din) < kBf16Tolerance);
  int tuned = 0;
  for (const auto& entry : device.cuda.device->gemms->entries()) tuned += entry.tuned;
  CHECK(tuned == 1); // nothing is timed under capture
}

} // namespace gpt2
