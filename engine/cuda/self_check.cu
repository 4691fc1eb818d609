#include "engine/cuda/self_check.h"

#include <cublasLt.h>
#include <cuda_bf16.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/rng.h"
#include "engine/system/tuning_store.h"
#include "kernels/attention.h"
#include "kernels/cast_fp8.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/open_device.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/gelu_fp8.h"
#include "kernels/gemm.h"
#include "kernels/gemm_fp8.h"
#include "kernels/layernorm.h"
#include "kernels/layernorm_backward.h"
#include "kernels/layernorm_fp8.h"
#include "kernels/optimizer.h"
#include "kernels/sm90/attention.h"

namespace gpt2 {
namespace {

std::string requested() {
  const char* const text = std::getenv("GPT2_SELF_CHECK");
  return text ? text : "";
}

// ---- the same array on both sides ----

float widened(float value) { return value; }
float widened(bf16 value) { return __bfloat162float(value); }

// T on the device, FP32 on the CPU. Inputs are normal values that BF16 holds exactly.
template <class T>
class Values {
 public:
  Values(CudaStream& cuda, int64_t count, uint64_t seed = 0, float deviation = 1, float mean = 0)
      : host(static_cast<size_t>(count)), cuda_(cuda), memory_(host.size() * sizeof(T)) {
    std::vector<T> narrow(host.size());
    for (size_t i = 0; i < host.size(); ++i) {
      const float value = seed == 0 ? 0.0f : mean + deviation * static_cast<float>(Rng(seed).normal(i));
      host[i] = bf16_decode(bf16_encode(value));
      narrow[i] = static_cast<T>(host[i]);
    }
    copy_to_device(cuda.stream, gpu(), std::span<const T>(narrow));
  }
  T* gpu() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<float> read() const {
    std::vector<T> narrow(host.size());
    copy_to_host(cuda_.stream, std::span<T>(narrow), static_cast<const T*>(gpu()));
    std::vector<float> wide(host.size());
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = widened(narrow[i]);
    return wide;
  }

  std::vector<float> host;

 private:
  CudaStream& cuda_;
  DeviceMemory memory_;
};

// Bytes that are the same on both sides.
template <class T>
struct Plain {
  Plain(CudaStream& cuda, std::vector<T> values) : host(std::move(values)), memory(host.size() * sizeof(T)) {
    copy_to_device(cuda.stream, gpu(), std::span<const T>(host));
  }
  T* gpu() const { return reinterpret_cast<T*>(memory.data()); }
  std::vector<T> host;
  DeviceMemory memory;
};

struct OnCpu {
  using Activation = float;
  template <class Array>
  auto* operator()(Array& array) const {
    return array.host.data();
  }
};
struct OnGpu {
  using Activation = bf16;
  template <class Array>
  auto* operator()(Array& array) const {
    return array.gpu();
  }
};

// ---- one check ----

constexpr double kBf16 = 0.03;     // a few roundings to BF16
constexpr double kScores = 0.1;    // gradients of scores cancel where a query sees few keys: 0.037 on an H200
constexpr double kFp32 = 1e-3;     // sums in another order
constexpr double kOneStep = 0.26;  // a value at the border of two E5M2 or E4M3 values
constexpr double kFp8Gemm = 0.015; // FP8 operands are exact; sums have 14 bits or more, results are BF16

CudaOptions untuned(const CudaModelOptions& options) { // the first plan, without timing
  CudaOptions untuned;
  untuned.device = options.device;
  untuned.deterministic = true;
  untuned.attention = options.attention;
  untuned.kernels = options.kernels;
  return untuned;
}

class Checker {
 public:
  explicit Checker(const CudaModelOptions& options) : cuda(open_device(untuned(options))), planted_(requested()) {}

  template <class Work>
  void run(const Work& work) {
    work(cpu, OnCpu{});
    work(cuda, OnGpu{});
  }

  // The largest |actual - expected| over |expected| + its root mean square: one wrong number is enough.
  void compare(const std::string& kernel, std::vector<float> actual, const std::vector<float>& expected,
               double tolerance, bool fp8_gemm = false) {
    if (kernel == planted_) actual[actual.size() / 2] = 2 * actual[actual.size() / 2] + 1e3f;
    double square = 0, worst = 0;
    for (const float value : expected) square += static_cast<double>(value) * value;
    const double typical = std::sqrt(square / static_cast<double>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      const double off = std::abs(static_cast<double>(actual[i]) - expected[i]);
      worst = off <= std::numeric_limits<double>::max() ? std::max(worst, off / (std::abs(expected[i]) + typical))
                                                        : INFINITY;
    }
    ++result.kernels;
    if (worst <= tolerance) return;
    (fp8_gemm ? result.different_fp8_gemms : result.different)
        .push_back(kernel + formatted(" (%.2g off, at most %.2g)", worst, tolerance));
  }
  template <class T>
  void compare(const std::string& kernel, const Values<T>& values, double tolerance) {
    compare(kernel, values.read(), values.host, tolerance);
  }

  CudaStream cuda;
  Cpu cpu;
  SelfCheck result;

 private:
  std::string planted_;
};

// ---- BF16 ----

void check_gemms(Checker& c) {
  constexpr int R = 192, C = 256, OC = 320;
  Values<bf16> in(c.cuda, R * C, 1), weight(c.cuda, OC * C, 2, 0.05f), bias(c.cuda, OC, 3), out(c.cuda, R * OC),
      dout(c.cuda, R * OC, 4), din(c.cuda, R * C);
  Values<float> dweight(c.cuda, OC * C, 5);
  c.run([&](auto& backend, const auto at) {
    using A = typename decltype(at)::Activation;
    gemm_forward(backend, GemmForward<A>{at(out), at(in), at(weight), at(bias), R, C, OC});
    gemm_backward_input(backend, GemmBackwardInput<A>{at(din), at(dout), at(weight), R, C, OC});
    gemm_backward_weight(backend, GemmBackwardWeight<A>{at(dweight), at(dout), at(in), R, C, OC});
  });
  c.compare("gemm_forward", out, kBf16);
  c.compare("gemm_backward_input", din, kBf16);
  c.compare("gemm_backward_weight", dweight, kFp32);
}

void check_layernorm(Checker& c) {
  constexpr int R = 144, C = 1600; // the widest of GPT-2
  Values<bf16> x(c.cuda, R * C, 1, 1, 0.3f), branch(c.cuda, R * C, 2), sum(c.cuda, R * C), out(c.cuda, R * C),
      dout(c.cuda, R * C, 3), dx(c.cuda, R * C, 4);
  Values<float> weight(c.cuda, C, 5, 0.2f, 1), bias(c.cuda, C, 6, 0.2f), mean(c.cuda, R), rstd(c.cuda, R),
      dweight(c.cuda, C), dbias(c.cuda, C), dbranch(c.cuda, C);
  c.run([&](auto& backend, const auto at) {
    using A = typename decltype(at)::Activation;
    layernorm_forward(backend, LayerNormForward<A>{at(out), at(sum), at(mean), at(rstd), at(x), at(branch), at(weight),
                                                   at(bias), R, C});
    layernorm_backward(backend, LayerNormBackward<A>{at(dx), at(dweight), at(dbias), at(dbranch), at(dout), at(sum),
                                                     at(weight), at(mean), at(rstd), R, C, true});
  });
  c.compare("layernorm_forward", out, kBf16);
  c.compare("layernorm_backward", dx, kBf16);
  c.compare("layernorm_weight_gradient", dweight, kBf16); // sum is rounded to BF16 on the GPU alone
}

void check_gelu(Checker& c) {
  constexpr int R = 96, C = 512;
  Values<bf16> in(c.cuda, R * C, 1, 2), out(c.cuda, R * C), dout(c.cuda, R * C, 2), din(c.cuda, R * C);
  Values<float> dbias(c.cuda, C);
  c.run([&](auto& backend, const auto at) {
    using A = typename decltype(at)::Activation;
    gelu_forward(backend, GeluForward<A>{at(out), at(in), R, C});
    gelu_backward(backend, GeluBackward<A>{at(din), at(dbias), at(dout), at(in), R, C});
  });
  c.compare("gelu_forward", out, kBf16);
  c.compare("gelu_backward", din, kBf16);
  c.compare("gelu_bias_gradient", dbias, kBf16);
}

void check_attention(Checker& c) {
  constexpr int B = 2, T = 256, NH = 3, HS = 64;
  constexpr int64_t kSize = int64_t{B} * T * NH * HS;
  Values<bf16> qkv(c.cuda, 3 * kSize, 1), out(c.cuda, kSize), dout(c.cuda, kSize, 2), dqkv(c.cuda, 3 * kSize);
  Values<float> stats(c.cuda, int64_t{B} * T * NH);
  const CudaDevice& device = *c.cuda.device;
  const bool hopper = sm90::can_implement_attention(device.sm90_kernels, device.options.attention, B, T, HS);
  c.run([&](auto& backend, const auto at) {
    using A = typename decltype(at)::Activation;
    const AttentionForward<A> forward{at(out), at(stats), at(qkv), B, T, NH, HS};
    const AttentionBackward<A> backward{at(dqkv), at(dout), at(out), at(qkv), at(stats), B, T, NH, HS};
    if constexpr (std::is_same_v<A, bf16>) {
      hopper ? sm90::attention_forward(backend, forward) : attention_forward(backend, forward);
      hopper ? sm90::attention_backward(backend, backward) : attention_backward(backend, backward);
    } else {
      attention_forward(backend, forward);
      attention_backward(backend, backward);
    }
  });
  c.compare("attention_forward", out, kBf16);
  c.compare("attention_backward", dqkv, kScores);
}

void check_ends(Checker& c) { // embedding, loss
  constexpr int B = 2, T = 64, C = 256, V = 1000, kPadded = 1024;
  std::vector<int32_t> ids(B * T);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 % V);
  Plain<int32_t> tokens(c.cuda, ids);
  Values<bf16> wte(c.cuda, kPadded * C, 1), wpe(c.cuda, T * C, 2), x(c.cuda, B * T * C), dx(c.cuda, B * T * C, 3),
      logits(c.cuda, B * T * kPadded, 4, 3);
  Values<float> dwte(c.cuda, kPadded * C), dwpe(c.cuda, T * C), losses(c.cuda, B * T);
  c.run([&](auto& backend, const auto at) {
    using A = typename decltype(at)::Activation;
    embedding_forward(backend, EmbeddingForward<A>{at(x), at(tokens), at(wte), at(wpe), B, T, C});
    embedding_backward(backend, EmbeddingBackward<A>{at(dwte), at(dwpe), at(dx), at(tokens), B, T, C, V});
    cross_entropy(backend, CrossEntropy<A>{at(logits), at(losses), at(tokens), B * T, V, kPadded, true});
  });
  c.compare("embedding_forward", x, kBf16);
  c.compare("embedding_backward", dwte, kFp32);
  c.compare("cross_entropy", losses, kFp32);
  c.compare("cross_entropy_gradient", logits, kBf16);
}

void check_adamw(Checker& c) {
  constexpr int kCount = 2048;
  StepScalars step{};
  step.grad_scale = 0.5f;
  GuardState guard{};
  guard.adam_step = 3;
  Plain<StepScalars> scalars(c.cuda, {step});
  Plain<GuardState> guards(c.cuda, {guard});
  Plain<uint8_t> decay(c.cuda, std::vector<uint8_t>(kCount / kDecayGranule, 1));
  Values<float> master(c.cuda, kCount, 1), m(c.cuda, kCount, 2), v(c.cuda, kCount, 3, 0.01f, 1),
      grad(c.cuda, kCount, 4);
  Values<bf16> weights(c.cuda, kCount);
  c.run([&](auto& backend, const auto at) {
    using A = typename decltype(at)::Activation;
    adamw(backend, AdamW<A>{at(master), at(weights), at(m), at(v), at(grad), at(decay), at(scalars), at(guards), kCount,
                            0.1f, 0.9f, 0.95f, 1e-8f, 0.1f});
  });
  c.compare("adamw", master, kFp32);
}

// ---- FP8 ----

constexpr Fp8Format kE4m3 = Fp8Format::e4m3, kE5m2 = Fp8Format::e5m2;

// An FP8 output, row-major and transposed, with its scale.
struct Fp8Result {
  Fp8Result(CudaStream& cuda, int64_t count, Fp8Format format, float scale)
      : format(format),
        scale(scale),
        data(cuda, std::vector<uint8_t>(static_cast<size_t>(count))),
        transposed(cuda, data.host),
        meta(cuda, {{.scale_inv = 1 / scale, .scale = scale, .saturated = 0, .flushed = 0}}),
        amax(cuda, {0}) {}
  Fp8Output output() { return {data.gpu(), transposed.gpu(), format, meta.gpu(), amax.gpu()}; }

  Fp8Output output_t() { return {nullptr, transposed.gpu(), format, meta.gpu(), amax.gpu()}; }

  // The transpose as a (rows, cols) matrix of values; the row-major one has to be its bits.
  std::vector<float> read(CudaStream& cuda, int rows, int cols, bool both) {
    copy_to_host(cuda.stream, std::span(data.host), static_cast<const uint8_t*>(data.gpu()));
    copy_to_host(cuda.stream, std::span(transposed.host), static_cast<const uint8_t*>(transposed.gpu()));
    std::vector<float> values(data.host.size());
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < cols; ++col) {
        const size_t i = static_cast<size_t>(row) * cols + col;
        const uint8_t byte = transposed.host[static_cast<size_t>(col) * rows + row];
        values[i] = both && byte != data.host[i] ? NAN : fp8_decode(byte, format) / scale;
      }
    }
    return values;
  }

  Fp8Format format;
  float scale;
  Plain<uint8_t> data, transposed;
  Plain<Fp8TensorMeta> meta;
  Plain<uint32_t> amax;
};

void check_casts(Checker& c) {
  constexpr int R = 144, C = 1600;
  Values<bf16> in(c.cuda, R * C, 1), dout(c.cuda, R * C, 2), x(c.cuda, R * C, 3), gelu(c.cuda, R * C),
      din(c.cuda, R * C), normed(c.cuda, R * C), dx(c.cuda, R * C);
  Values<float> weight(c.cuda, C, 5, 0.2f, 1), bias(c.cuda, C, 6, 0.2f), mean(c.cuda, R), rstd(c.cuda, R),
      dweight(c.cuda, C), dbias(c.cuda, C), dbranch(c.cuda, C);
  Fp8Result cast(c.cuda, R * C, kE4m3, 64), gelu_fp8(c.cuda, R * C, kE4m3, 64), din_fp8(c.cuda, R * C, kE5m2, 1024),
      normed_fp8(c.cuda, R * C, kE4m3, 64), dx_fp8(c.cuda, R * C, kE5m2, 1024);
  gelu_forward(c.cpu, GeluForward<float>{gelu.host.data(), in.host.data(), R, C});
  gelu_backward(c.cpu, GeluBackward<float>{din.host.data(), nullptr, dout.host.data(), in.host.data(), R, C});
  layernorm_forward(c.cpu, LayerNormForward<float>{normed.host.data(), nullptr, mean.host.data(), rstd.host.data(),
                                                   x.host.data(), nullptr, weight.host.data(), bias.host.data(), R, C});
  layernorm_backward(
      c.cpu, LayerNormBackward<float>{dx.host.data(), dweight.host.data(), dbias.host.data(), dbranch.host.data(),
                                      dout.host.data(), x.host.data(), weight.host.data(), mean.host.data(),
                                      rstd.host.data(), R, C, false});

  cast_fp8(c.cuda, {.out = cast.output(), .dbias = nullptr, .in = in.gpu(), .rows = R, .cols = C});
  c.compare("cast_fp8", cast.read(c.cuda, R, C, true), in.host, kOneStep);
  gelu_backward_fp8(c.cuda, {.din = din_fp8.output(),
                             .out = gelu_fp8.output_t(),
                             .dbias = dbias.gpu(),
                             .dout = dout.gpu(),
                             .in = in.gpu(),
                             .rows = R,
                             .cols = C});
  c.compare("gelu_backward_fp8", din_fp8.read(c.cuda, R, C, true), din.host, kOneStep);
  c.compare("gelu_forward_fp8", gelu_fp8.read(c.cuda, R, C, false), gelu.host, kOneStep);
  layernorm_forward_fp8(
      c.cuda, {normed_fp8.output(), nullptr, mean.gpu(), rstd.gpu(), x.gpu(), nullptr, weight.gpu(), bias.gpu(), R, C});
  c.compare("layernorm_forward_fp8", normed_fp8.read(c.cuda, R, C, true), normed.host, kOneStep);
  layernorm_backward_fp8(c.cuda, {.dresidual_out = dx.gpu(),
                                  .dresidual_in = nullptr,
                                  .dresidual_fp8 = dx_fp8.output(),
                                  .out = {},
                                  .dweight = dweight.gpu(),
                                  .dbias = dbias.gpu(),
                                  .dbranch_bias = dbranch.gpu(),
                                  .dout = dout.gpu(),
                                  .x = x.gpu(),
                                  .weight = weight.gpu(),
                                  .bias = bias.gpu(),
                                  .mean = mean.gpu(),
                                  .rstd = rstd.gpu(),
                                  .rows = R,
                                  .C = C});
  c.compare("layernorm_backward_fp8", dx_fp8.read(c.cuda, R, C, true), dx.host, kOneStep);
}

// (rows, cols) in FP8, exact on both sides: row-major and transposed on the GPU, FP32 on the CPU.
struct Fp8Operand {
  Fp8Operand(Checker& c, int rows, int cols, Fp8Format format, uint64_t seed, float mean)
      : real(c.cuda, int64_t{rows} * cols, seed, 1, mean), bytes(c.cuda, int64_t{rows} * cols, format, 32) {
    cast_fp8(c.cuda, {.out = bytes.output(), .dbias = nullptr, .in = real.gpu(), .rows = rows, .cols = cols});
    real.host = bytes.read(c.cuda, rows, cols, false);
  }
  Fp8Tensor tensor() const { return {bytes.data.gpu(), bytes.format, bytes.meta.gpu()}; }
  Fp8Tensor tensor_t() const { return {bytes.transposed.gpu(), bytes.format, bytes.meta.gpu()}; }
  Values<bf16> real;
  Fp8Result bytes;
};

void check_fp8_gemms(Checker& c, const std::string& suffix, int R, int C, int OC, float mean) {
  Fp8Operand in(c, R, C, kE4m3, 1, mean), weight(c, OC, C, kE4m3, 2, mean), dout(c, R, OC, kE5m2, 3, mean);
  Values<bf16> out(c.cuda, int64_t{R} * OC), din(c.cuda, int64_t{R} * C);
  Values<float> dweight(c.cuda, int64_t{OC} * C);
  gemm_forward(c.cpu, {out.host.data(), in.real.host.data(), weight.real.host.data(), nullptr, R, C, OC});
  gemm_backward_input(c.cpu, {din.host.data(), dout.real.host.data(), weight.real.host.data(), R, C, OC});
  gemm_backward_weight(c.cpu, {dweight.host.data(), dout.real.host.data(), in.real.host.data(), R, C, OC});
  gemm_forward_fp8(c.cuda, {out.gpu(), in.tensor(), weight.tensor(), nullptr, R, C, OC});
  gemm_backward_input_fp8(c.cuda, {din.gpu(), dout.tensor(), weight.tensor_t(), R, C, OC});
  gemm_backward_weight_fp8(c.cuda, {dweight.gpu(), dout.tensor_t(), in.tensor_t(), R, C, OC});
  c.compare("gemm_forward_fp8" + suffix, out.read(), out.host, kFp8Gemm, true);
  c.compare("gemm_backward_input_fp8" + suffix, din.read(), din.host, kFp8Gemm, true);
  c.compare("gemm_backward_weight_fp8" + suffix, dweight.read(), dweight.host, kFp8Gemm, true);
}

} // namespace

bool needs_self_check(int compute_capability) {
  return compute_capability != kCheckedComputeCapability || !requested().empty();
}

SelfCheck run_self_check(const CudaModelOptions& options) {
  Checker c(options);
  check_gemms(c);
  check_layernorm(c);
  check_gelu(c);
  check_attention(c);
  check_ends(c);
  check_adamw(c);
  if (c.cuda.device->compute_capability < 89) return c.result;
  check_casts(c);
  try {
    check_fp8_gemms(c, "", 192, 256, 320, 0);
    // Sums of one sign over 65,536 tokens: an accumulator of too few bits loses most of them.
    check_fp8_gemms(c, "_long", 65536, 32, 48, 1);
  } catch (const Error& error) { // cuBLASLt has none
    c.result.different_fp8_gemms.emplace_back(error.what());
  }
  return c.result;
}

SelfCheckVerdict self_check(const CudaModelOptions& options) {
  const int capability = compute_capability_of(options.device);
  const std::string subject = formatted("compute capability %d.%d", capability / 10, capability % 10);
  const bool planted = !requested().empty() && requested() != "1";
  TuningStore store(planted ? "" : options.plan_cache);
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, options.device));
  const TuningKey key{properties.name, "self_check " + std::to_string(cublasLtGetVersion()),
                      std::string(GPT2_VERSION) + (options.kernels == KernelChoice::general ? " general" : "") +
                          " attention" + std::to_string(static_cast<int>(options.attention))};
  SelfCheckVerdict verdict;
  if (store.recall(key)) return verdict;
  const SelfCheck found = run_self_check(options);
  const std::string again = "report it with the output of bin/doctor --json; --device cpu trains without this GPU";
  if (!found.different.empty())
    throw Error(ExitCode::device,
                "on this GPU (" + subject + ") these kernels differ from the CPU reference: " + listed(found.different),
                again);
  if (!found.different_fp8_gemms.empty())
    verdict.fp8_refusal = "they differ from the CPU reference: " + listed(found.different_fp8_gemms);
  verdict.note = subject + ", on which this program was never tested: " + std::to_string(found.kernels) +
                 " kernels compared with the CPU reference, " +
                 (verdict.fp8_refusal.empty() ? "all" : "all but FP8's GEMMs") + " agree";
  if (verdict.fp8_refusal.empty()) store.remember(key, {"passed", 0}); // a refusal may pass: it is checked again
  return verdict;
}

} // namespace gpt2
