// One table of the GPU kernels of an FP8 block: time, rate, the floor of its bytes and FLOPs, and where a kernel of
// ours replaces others, what those take. Usage: bench_gpu_kernels [CHANNELS...]   (768 1024 1280 1600)
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "engine/backend/roofline.h"
#include "engine/cuda/gpt2_cuda.h"
#include "engine/system/program.h"
#include "kernels/attention.h"
#include "kernels/cast_fp8.h"
#include "kernels/cross_entropy_fp8.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/open_device.h"
#include "kernels/gelu_fp8.h"
#include "kernels/gemm_fp8.h"
#include "kernels/layernorm_backward.h"
#include "kernels/layernorm_fp8.h"
#include "kernels/sm90/attention.h"
#include "kernels/sm90/gemm_fp8_weight_stationary.h"
#include "kernels/sm90/lm_head_fp8.h"
#include "kernels/sm90/mlp_fp8.h"
#include "kernels/sm90/wgrad_gemm_splitk.h"

namespace {

using namespace gpt2;

constexpr int64_t kRows = 65536;
constexpr int kVocab = 50257, kPaddedVocab = 50304, kChunk = 4096;
constexpr double kFp8Flops = 1.52e15, kBf16Flops = 0.736e15; // cuBLASLt's best on one H200: 8192^3, 2026-11-16

// Memory of bytes that look like anything, so that tensor cores draw power as in training. As BF16, FP8 or float they
// are below 2 and finite.
struct Memory {
  explicit Memory(size_t bytes) {
    CUDA_CHECK(cudaMalloc(&data, bytes));
    std::vector<uint8_t> pattern(1 << 20);
    uint32_t state = 1;
    for (uint8_t& byte : pattern) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<uint8_t>(state >> 24 & 0xBF);
    }
    for (size_t at = 0; at < bytes; at += pattern.size())
      CUDA_CHECK(cudaMemcpy(static_cast<uint8_t*>(data) + at, pattern.data(), std::min(pattern.size(), bytes - at),
                            cudaMemcpyHostToDevice));
  }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  void* data = nullptr;
};

struct Meter {
  Meter() : memory(256) {
    const Fp8TensorMeta value{.scale_inv = 0.01f, .scale = 1.0f, .saturated = 0, .flushed = 0};
    CUDA_CHECK(cudaMemcpy(memory.data, &value, sizeof(value), cudaMemcpyHostToDevice));
  }
  Fp8TensorMeta* get() const { return memory.as<Fp8TensorMeta>(); }
  uint32_t* amax() const { return memory.as<uint32_t>() + 32; }
  Memory memory;
};

class Bench {
 public:
  explicit Bench(CudaStream& cuda) : cuda_(cuda) {
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
    std::printf("%-34s %5s %9s %10s %10s %8s %9s %7s\n", "kernel", "C", "ms", "GB/s", "TFLOP/s", "floor", "others ms",
                "ratio");
  }

  double milliseconds(const std::function<void()>& run) {
    for (int i = 0; i < 3; ++i) run();
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) {
      CUDA_CHECK(cudaEventRecord(begin_, cuda_.stream));
      run();
      CUDA_CHECK(cudaEventRecord(end_, cuda_.stream));
      CUDA_CHECK(cudaEventSynchronize(end_));
      float ms = 0;
      CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
      times.push_back(ms);
    }
    std::nth_element(times.begin(), times.begin() + 7, times.end());
    return times[7];
  }

  void row(const std::string& name, int C, double bytes, double flops, const std::function<void()>& run,
           const std::function<void()>& others = nullptr, double flops_rate = kFp8Flops) {
    const double ms = milliseconds(run);
    const double floor = 1e3 * std::max(bytes / kH200CopyBytesPerSecond, flops / flops_rate);
    std::printf("%-34s %5d %9.3f %10.0f %10.0f %8.3f", name.c_str(), C, ms, bytes / ms / 1e6, flops / ms / 1e9, floor);
    if (others) {
      const double theirs = milliseconds(others);
      std::printf(" %9.3f %6.2fx", theirs, theirs / ms);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  CudaStream& cuda_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// A kernel of ours, where it takes the product, beside the best of cuBLASLt's heuristics.
void bench_product(CudaStream& cuda, Bench& bench, const CublasLt& library, const std::string& name, int C,
                   const GemmKernel& own, const GemmProblem& product, const GemmArguments& operands, double bytes,
                   double flops_rate) {
  const CublasLtGemm theirs(library, product);
  theirs.bind(operands);
  std::vector<GemmMethod> methods;
  for (const CublasLtAlgorithm& algorithm : theirs.heuristics()) methods.emplace_back(algorithm);
  const auto best = autotune(cuda, product, operands, methods, [&](const GemmMethod& method, const GemmArguments& x) {
    return theirs.launch(cuda, std::get<CublasLtAlgorithm>(method), x);
  });
  const auto run_theirs = [&] { theirs.launch(cuda, std::get<CublasLtAlgorithm>(best->method), operands); };
  const double flops =
      2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
  if (own.can_implement(*cuda.device, product))
    bench.row(
        name, C, bytes, flops, [&] { own.launch(cuda, product, operands); }, run_theirs, flops_rate);
  else
    bench.row(name + " (cuBLASLt)", C, bytes, flops, run_theirs, nullptr, flops_rate);
}

void bench_width(CudaStream& cuda, Bench& bench, int C) {
  const auto R = kRows;
  const auto wide = static_cast<size_t>(R) * 4 * C, narrow = static_cast<size_t>(R) * C;
  const Memory narrow8(narrow), narrow8_t(narrow), narrow8_t2(narrow), wide8(wide), wide8_t(wide), wide8_t2(wide);
  const Memory narrow16(2 * narrow), narrow16b(2 * narrow), narrow16c(2 * narrow), wide16(2 * wide), wide16b(2 * wide);
  const Memory weight(size_t{4} * C * C), vectors(size_t{16} * C), gradients(size_t{16} * C);
  const Memory rows(16 * static_cast<size_t>(R));
  const Meter act, grad, in, weights;
  const auto tensor = [](const Memory& memory, Fp8Format format, const Meter& meta) {
    return Fp8Tensor{memory.as<uint8_t>(), format, meta.get()};
  };
  const auto sink = [](uint8_t* data, uint8_t* transposed, Fp8Format format, const Meter& meta,
                       Fp8Statistics statistics) {
    return Fp8Output{data, transposed, format, meta.get(), meta.amax(), statistics};
  };
  float* const sums = gradients.as<float>();
  const bf16* const bias = vectors.as<bf16>();
  const Fp8Output gelu_out = sink(wide8.as<uint8_t>(), nullptr, Fp8Format::e4m3, act, Fp8Statistics::all);
  const Fp8Output gelu_again = sink(nullptr, wide8_t2.as<uint8_t>(), Fp8Format::e4m3, act, Fp8Statistics::none);
  const Fp8Output wide_gradient =
      sink(wide8.as<uint8_t>(), wide8_t.as<uint8_t>(), Fp8Format::e5m2, grad, Fp8Statistics::all);
  const Fp8Output narrow_gradient =
      sink(narrow8.as<uint8_t>(), narrow8_t.as<uint8_t>(), Fp8Format::e5m2, grad, Fp8Statistics::all);
  const Fp8Tensor in8 = tensor(narrow8, Fp8Format::e4m3, in), dout8 = tensor(narrow8, Fp8Format::e5m2, grad);
  const Fp8Tensor weight8 = tensor(weight, Fp8Format::e4m3, weights);
  const double wide_elements = static_cast<double>(wide), elements = static_cast<double>(narrow);
  const double wide_flops = 2.0 * wide_elements * C;

  // ---- products with GELU ----
  const auto product_and_gelu = [&] {
    gemm_forward_fp8(
        cuda, {.out = wide16.as<bf16>(), .in = in8, .weight = weight8, .bias = bias, .rows = R, .C = C, .OC = 4 * C});
    gelu_forward_fp8(cuda, {.out = gelu_out, .in = wide16.as<bf16>(), .rows = R, .cols = 4 * C});
  };
  const auto product_and_gradient = [&] {
    gemm_backward_input_fp8(
        cuda, {.din = wide16b.as<bf16>(), .dout = dout8, .weight_t = weight8, .rows = R, .C = 4 * C, .OC = C});
    gelu_backward_fp8(cuda, {.din = wide_gradient,
                             .out = gelu_again,
                             .dbias = sums,
                             .dout = wide16b.as<bf16>(),
                             .in = wide16.as<bf16>(),
                             .rows = R,
                             .cols = 4 * C});
  };
  if (can_fuse_mlp_fp8(*cuda.device, R, C, 4 * C)) {
    bench.row(
        "fc + GELU", C, 2 * wide_elements, wide_flops,
        [&] {
          fc_gelu_fp8(cuda, {.gelu = gelu_out,
                             .slope = wide16.as<uint8_t>(),
                             .in = in8,
                             .weight = weight8,
                             .bias = bias,
                             .rows = R,
                             .C = C,
                             .OC = 4 * C});
        },
        product_and_gelu);
    bench.row(
        "fcproj's gradient + GELU'", C, 5 * wide_elements, wide_flops,
        [&] {
          fcproj_gelu_gradient_fp8(cuda, {.dx = wide_gradient,
                                          .gelu_t = wide8_t2.as<uint8_t>(),
                                          .dbias = sums,
                                          .dout = dout8,
                                          .weight_t = weight8,
                                          .gelu = wide16.as<uint8_t>(),
                                          .slope = wide16.as<uint8_t>() + wide,
                                          .rows = R,
                                          .C = C,
                                          .OC = 4 * C});
        },
        product_and_gradient);
  } else {
    bench.row("fc, then GELU", C, 5 * wide_elements, wide_flops, product_and_gelu);
    bench.row("fcproj's gradient, then GELU'", C, 9 * wide_elements, wide_flops, product_and_gradient);
  }

  // ---- plain products ----
  const CublasLt library;
  for (const auto& [name, width] : {std::pair{"qkv", 3 * C}, std::pair{"proj", C}, std::pair{"fc", 4 * C}}) {
    bench_product(cuda, bench, library, std::string(name) + " forward", C, sm90::gemm_fp8_weight_stationary(),
                  {.transpose_a = true,
                   .m = width,
                   .n = R,
                   .k = C,
                   .a = GemmType::e4m3,
                   .b = GemmType::e4m3,
                   .epilogue = GemmEpilogue::bias,
                   .fast_accumulation = true},
                  {.d = wide16.as<bf16>(),
                   .a = weight.data,
                   .b = narrow8.data,
                   .bias = bias,
                   .a_scale = &weights.get()->scale_inv,
                   .b_scale = &in.get()->scale_inv},
                  2.0 * static_cast<double>(R) * width + elements, kFp8Flops);
  }
  const Memory dweight(size_t{16} * C * C);
  struct Layer {
    const char* name;
    int in, out; // channels
  };
  for (const Layer& layer :
       {Layer{"qkv", C, 3 * C}, Layer{"proj", C, C}, Layer{"fc", C, 4 * C}, Layer{"fcproj", 4 * C, C}}) {
    bench_product(cuda, bench, library, std::string(layer.name) + "'s weights, BF16", C, sm90::wgrad_gemm_splitk(),
                  {.transpose_b = true, .m = layer.in, .n = layer.out, .k = R, .d = GemmType::fp32, .accumulate = true},
                  {.d = dweight.data, .a = wide16.data, .b = wide16b.data},
                  2.0 * static_cast<double>(R) * (layer.in + layer.out) + 8.0 * layer.in * layer.out, kBf16Flops);
  }

  // ---- memory-bound kernels ----
  bench.row("LayerNorm backward", C, 11 * elements, 0, [&] {
    layernorm_backward_fp8(cuda,
                           {.dresidual_out = narrow16.as<bf16>(),
                            .dresidual_in = narrow16.as<bf16>(),
                            .dresidual_fp8 = narrow_gradient,
                            .out = sink(nullptr, narrow8_t2.as<uint8_t>(), Fp8Format::e4m3, act, Fp8Statistics::none),
                            .dweight = sums,
                            .dbias = sums + C,
                            .dbranch_bias = sums + 2 * C,
                            .dout = narrow16b.as<bf16>(),
                            .x = narrow16c.as<bf16>(),
                            .weight = vectors.as<float>(),
                            .bias = vectors.as<float>() + C,
                            .mean = rows.as<float>(),
                            .rstd = rows.as<float>() + R,
                            .rows = R,
                            .C = C});
  });
  bench.row("LayerNorm backward, BF16", C, 8 * elements, 0, [&] {
    layernorm_backward(cuda, LayerNormBackward<bf16>{.dresidual = narrow16.as<bf16>(),
                                                     .dweight = sums,
                                                     .dbias = sums + C,
                                                     .dbranch_bias = sums + 2 * C,
                                                     .dout = narrow16b.as<bf16>(),
                                                     .x = narrow16c.as<bf16>(),
                                                     .weight = vectors.as<float>(),
                                                     .mean = rows.as<float>(),
                                                     .rstd = rows.as<float>() + R,
                                                     .rows = R,
                                                     .C = C,
                                                     .accumulate = true});
  });
  bench.row("LayerNorm forward", C, 7 * elements, 0, [&] {
    layernorm_forward_fp8(cuda, {.out = sink(narrow8.as<uint8_t>(), nullptr, Fp8Format::e4m3, act, Fp8Statistics::all),
                                 .residual_out = narrow16.as<bf16>(),
                                 .mean = rows.as<float>(),
                                 .rstd = rows.as<float>() + R,
                                 .residual_in = narrow16b.as<bf16>(),
                                 .branch = narrow16c.as<bf16>(),
                                 .weight = vectors.as<float>(),
                                 .bias = vectors.as<float>() + C,
                                 .rows = R,
                                 .C = C});
  });
  bench.row("dqkv to FP8, with bias gradient", C, 12 * elements, 0, [&] {
    cast_fp8(cuda, {.out = wide_gradient, .dbias = sums, .in = wide16.as<bf16>(), .rows = R, .cols = 3 * C});
  });
}

// Attention of 64 sequences, and cuDNN's.
void bench_attention(CudaStream& cuda, Bench& bench, int C) {
  constexpr int T = 1024, HS = 64, B = static_cast<int>(kRows / T);
  if (!sm90::can_implement_attention(cuda.device->sm90_kernels, AttentionKind::automatic, B, T, HS)) return;
  const auto elements = static_cast<size_t>(kRows) * static_cast<size_t>(C);
  const Memory qkv(6 * elements), out(2 * elements), dout(2 * elements), dqkv(6 * elements), stats(elements / HS * 4);
  const AttentionForward<bf16> forward{out.as<bf16>(), stats.as<float>(), qkv.as<bf16>(), B, T, C / HS, HS};
  const AttentionBackward<bf16> backward{
      dqkv.as<bf16>(), dout.as<bf16>(), out.as<bf16>(), qkv.as<bf16>(), stats.as<float>(), B, T, C / HS, HS};
  const double product = static_cast<double>(elements) * T;
  bench.row(
      "attention forward", C, 8.0 * static_cast<double>(elements), 2 * product,
      [&] { sm90::attention_forward(cuda, forward); }, [&] { attention_forward(cuda, forward); }, kBf16Flops);
  bench.row(
      "attention backward", C, 16.0 * static_cast<double>(elements), 5 * product,
      [&] { sm90::attention_backward(cuda, backward); }, [&] { attention_backward(cuda, backward); }, kBf16Flops);
}

// A chunk of the LM head, at the width of 124M, and its loss: together, where the product tells softmax's parts, and
// apart.
void bench_head(CudaStream& cuda, Bench& bench) {
  constexpr int kChannels = 768;
  const auto elements = static_cast<size_t>(kChunk) * kPaddedVocab;
  const int parts_per_row = lm_head_parts_fp8(kChannels, kPaddedVocab);
  const Memory logits(2 * elements), codes(elements), codes_t(elements), rows(64 * kChunk);
  const Memory in(size_t{kChunk} * kChannels), weight(size_t{kPaddedVocab} * kChannels);
  const Memory parts(static_cast<size_t>(kChunk) * static_cast<size_t>(parts_per_row) * sizeof(SoftmaxPart));
  const Meter meta;
  std::vector<int32_t> targets(kChunk);
  for (int i = 0; i < kChunk; ++i) targets[static_cast<size_t>(i)] = i * 11 % kVocab;
  CUDA_CHECK(cudaMemcpy(rows.data, targets.data(), targets.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
  int64_t* const first_token = rows.as<int64_t>() + kChunk;
  CUDA_CHECK(cudaMemset(first_token, 0, sizeof(int64_t)));
  const Fp8Tensor in8{in.as<uint8_t>(), Fp8Format::e4m3, meta.get()};
  const Fp8Tensor weight8{weight.as<uint8_t>(), Fp8Format::e4m3, meta.get()};
  const auto product = [&] {
    gemm_forward_fp8(cuda, {.out = logits.as<bf16>(),
                            .in = in8,
                            .weight = weight8,
                            .bias = nullptr,
                            .rows = kChunk,
                            .C = kChannels,
                            .OC = kPaddedVocab});
  };
  const auto product_with_parts = [&] {
    lm_head_fp8(cuda, {.logits = logits.as<bf16>(),
                       .parts = parts.as<SoftmaxPart>(),
                       .in = in8,
                       .weight = weight8,
                       .rows = kChunk,
                       .C = kChannels,
                       .vocab = kVocab,
                       .padded_vocab = kPaddedVocab});
  };
  const auto loss_from = [&](const SoftmaxPart* of_product) {
    cross_entropy_fp8(cuda, {.logits = logits.as<bf16>(),
                             .losses = rows.as<float>() + 8 * kChunk,
                             .dlogits = {codes.as<uint8_t>(), codes_t.as<uint8_t>(), Fp8Format::e5m2, meta.get(),
                                         meta.amax(), Fp8Statistics::none},
                             .targets = rows.as<int32_t>(),
                             .rows = kChunk,
                             .first_row = 0,
                             .first_token = first_token,
                             .vocab = kVocab,
                             .padded_vocab = kPaddedVocab,
                             .parts = of_product,
                             .parts_per_row = parts_per_row});
  };
  const auto loss = [&] { loss_from(nullptr); };
  const double bytes = static_cast<double>(elements), flops = 2 * bytes * kChannels;
  if (!can_fuse_lm_head_fp8(*cuda.device, kChunk, kChannels, kPaddedVocab)) {
    bench.row("LM head, 4,096 rows", kChannels, 2 * bytes, flops, product);
    bench.row("cross-entropy, 4,096 rows", 0, 6 * bytes, 0, loss);
    return;
  }
  bench.row("LM head + softmax, 4,096 rows", kChannels, 2 * bytes, flops, product_with_parts, product);
  bench.row(
      "cross-entropy of that", 0, 4 * bytes, 0, [&] { loss_from(parts.as<SoftmaxPart>()); }, loss);
}

} // namespace

int main(int argc, char** argv) {
  return run_program([&] {
    std::vector<int> widths;
    for (int i = 1; i < argc; ++i) widths.push_back(std::stoi(argv[i]));
    if (widths.empty()) widths = {768, 1024, 1280, 1600};
    const CudaDeviceInfo device = probe_cuda_device(0);
    if (!device.usable) {
      std::printf("skipped: %s\n", device.why_not.c_str());
      return ExitCode::done;
    }
    CudaStream cuda(open_device(CudaOptions{}));
    Bench bench(cuda);
    for (const int C : widths) bench_width(cuda, bench, C);
    for (const int C : widths) bench_attention(cuda, bench, C);
    bench_head(cuda, bench);
    return ExitCode::done;
  });
}
