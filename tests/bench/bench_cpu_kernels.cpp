// Times every CPU kernel at the sizes of one GPT-2 124M training step, and adds them up to the whole step:
// what share is matrix products, and what percentage of the machine's sgemm rate the step reaches.
//   bench_cpu_kernels [B] [T]     default 2 1024
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/fp8_quantize.h"
#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/layernorm.h"
#include "kernels/layernorm_backward.h"
#include "kernels/optimizer.h"

using namespace gpt2;

namespace {

constexpr int kLayers = 12, kHeads = 12, kC = 768, kVocab = 50257, kPaddedVocab = 50304;
constexpr int64_t kParameters = 124'475'904 / 256 * 256;

double seconds_of(const std::function<void()>& body, int repeats) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

std::vector<float> random_floats(int64_t count, float deviation = 1.0f) {
  std::vector<float> values(static_cast<size_t>(count));
  std::minstd_rand generator(1);
  std::uniform_real_distribution<float> uniform(-1.7f * deviation, 1.7f * deviation);
  for (float& value : values) value = uniform(generator);
  return values;
}

// One line per kernel; the sums make the step.
class Report {
 public:
  void time(const std::string& name, int times_per_step, double flops, const std::function<void()>& body,
            int repeats = 5) {
    const double seconds = seconds_of(body, repeats);
    std::printf("%-28s %9.2f ms x %2d", name.c_str(), 1e3 * seconds, times_per_step);
    if (flops > 0) std::printf("  %6.1f GFLOP/s", 1e-9 * flops / seconds);
    std::printf("\n");
    std::fflush(stdout);
    (flops > 0 ? product_seconds_ : other_seconds_) += seconds * times_per_step;
    flops_ += flops * times_per_step;
  }
  void print_step(double sgemm_rate) const {
    const double seconds = product_seconds_ + other_seconds_;
    std::printf(
        "step: %.2f s, of which %.1f%% in kernels without matrix products; %.1f GFLOP/s = %.0f%% of sgemm (%.1f)\n",
        seconds, 100 * other_seconds_ / seconds, 1e-9 * flops_ / seconds, 100 * flops_ / seconds / sgemm_rate,
        1e-9 * sgemm_rate);
  }

 private:
  double product_seconds_ = 0, other_seconds_ = 0, flops_ = 0;
};

void time_linear(Cpu& cpu, Report& report, const std::string& name, int times, int64_t rows, int C, int OC,
                 bool with_bias) {
  std::vector<float> in = random_floats(rows * C), out = random_floats(rows * OC);
  std::vector<float> weight = random_floats(int64_t{C} * OC, 0.02f), dweight(weight.size()),
                     bias(static_cast<size_t>(OC));
  const double flops = 2.0 * static_cast<double>(rows) * C * OC;
  const float* bias_or_none = with_bias ? bias.data() : nullptr;
  report.time(
      name + " forward", times, flops,
      [&] {
        gemm_forward(cpu, {out.data(), in.data(), weight.data(), bias_or_none, rows, C, OC});
      },
      3);
  report.time(
      name + " dgrad", times, flops,
      [&] {
        gemm_backward_input(cpu, {in.data(), out.data(), weight.data(), rows, C, OC});
      },
      3);
  report.time(
      name + " wgrad", times, flops,
      [&] {
        gemm_backward_weight(cpu, {dweight.data(), out.data(), in.data(), rows, C, OC});
      },
      3);
}

void time_attention(Cpu& cpu, Report& report, int B, int T) {
  const int HS = kC / kHeads;
  const int64_t rows = int64_t{B} * T;
  std::vector<float> qkv = random_floats(rows * 3 * kC), out = random_floats(rows * kC),
                     dout = random_floats(rows * kC);
  std::vector<float> dqkv(qkv.size()), stats(static_cast<size_t>(rows * kHeads));
  const double flops = 2.0 * B * kHeads * HS * (0.5 * T * (T + 1.0)); // one product of the lower triangle
  report.time("attention forward", kLayers, 2 * flops, [&] {
    attention_forward(cpu, {out.data(), stats.data(), qkv.data(), B, T, kHeads, HS});
  });
  report.time("attention backward", kLayers, 5 * flops, [&] {
    attention_backward(cpu, {dqkv.data(), dout.data(), out.data(), qkv.data(), stats.data(), B, T, kHeads, HS});
  });
  std::vector<float> dbias(3 * kC);
  report.time("qkv bias gradient", kLayers, 0, [&] { bias_backward(cpu, {dbias.data(), dqkv.data(), rows, 3 * kC}); });
}

void time_layernorm(Cpu& cpu, Report& report, int64_t rows) {
  std::vector<float> x = random_floats(rows * kC), branch = random_floats(rows * kC), sum(x.size()), out(x.size());
  std::vector<float> mean(static_cast<size_t>(rows)), rstd(mean.size()), weight(kC, 1.0f), bias(kC), dbranch_bias(kC);
  report.time("layernorm forward", 2 * kLayers + 1, 0, [&] {
    layernorm_forward(cpu, {out.data(), sum.data(), mean.data(), rstd.data(), x.data(), branch.data(), weight.data(),
                            bias.data(), rows, kC});
  });
  report.time("layernorm backward", 2 * kLayers + 1, 0, [&] {
    layernorm_backward(cpu, {out.data(), weight.data(), bias.data(), dbranch_bias.data(), branch.data(), sum.data(),
                             weight.data(), mean.data(), rstd.data(), rows, kC, true});
  });
}

void time_gelu(Cpu& cpu, Report& report, int64_t rows) {
  std::vector<float> in = random_floats(rows * 4 * kC), out(in.size()), dbias(4 * kC);
  report.time("gelu forward", kLayers, 0, [&] { gelu_forward(cpu, {out.data(), in.data(), rows, 4 * kC}); });
  report.time("gelu backward", kLayers, 0, [&] {
    gelu_backward(cpu, {out.data(), dbias.data(), out.data(), in.data(), rows, 4 * kC});
  });
}

void time_ends(Cpu& cpu, Report& report, int B, int T) {
  const int64_t rows = int64_t{B} * T;
  std::vector<float> wte = random_floats(int64_t{kPaddedVocab} * kC), wpe = random_floats(int64_t{T} * kC);
  std::vector<float> out(static_cast<size_t>(rows * kC)), logits = random_floats(rows * kPaddedVocab);
  std::vector<float> losses(static_cast<size_t>(rows));
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7919 % kVocab);
  report.time("embedding forward", 1, 0, [&] {
    embedding_forward(cpu, {out.data(), tokens.data(), wte.data(), wpe.data(), B, T, kC});
  });
  report.time("embedding backward", 1, 0, [&] {
    embedding_backward(cpu, {wte.data(), wpe.data(), out.data(), tokens.data(), B, T, kC, kVocab});
  });
  report.time("cross entropy", 1, 0, [&] {
    cross_entropy(cpu, {logits.data(), losses.data(), tokens.data(), rows, kVocab, kPaddedVocab, true});
  });
}

void time_optimizer(Cpu& cpu, Report& report) {
  std::vector<float> weights = random_floats(kParameters, 0.02f), grad = random_floats(kParameters), m(weights.size());
  std::vector<float> v(weights.size());
  std::vector<uint8_t> mask(weights.size() / 256, 1);
  StepScalars scalars{};
  scalars.grad_scale = 1;
  GuardState guard{};
  guard.adam_step = 1;
  report.time("gradient norm", 1, 0, [&] { gradient_norm(cpu, {&scalars.sums, grad.data(), kParameters}); });
  report.time("adamw", 1, 0, [&] {
    adamw(cpu, {weights.data(), nullptr, m.data(), v.data(), grad.data(), mask.data(), &scalars, &guard, kParameters,
                6e-4f, 0.9f, 0.95f, 1e-8f, 0.1f});
  });
}

} // namespace

int main(int argc, char** argv) {
  const int B = argc > 1 ? std::atoi(argv[1]) : 2, T = argc > 2 ? std::atoi(argv[2]) : 1024;
  const int64_t rows = int64_t{B} * T;
  Cpu cpu;
  Report report;
  std::printf("GPT-2 124M, B=%d T=%d\n", B, T);

  const int size = 2048;
  std::vector<float> a = random_floats(size * size), b = random_floats(size * size), c(a.size());
  const double sgemm_seconds = seconds_of(
      [&] {
        gemm_forward(cpu, {c.data(), a.data(), b.data(), nullptr, size, size, size});
      },
      5);
  const double sgemm_rate = 2.0 * size * size * size / sgemm_seconds;
  std::printf("sgemm %d^3: %.1f GFLOP/s\n", size, 1e-9 * sgemm_rate);

  time_linear(cpu, report, "qkv", kLayers, rows, kC, 3 * kC, true);
  time_linear(cpu, report, "proj", kLayers, rows, kC, kC, true);
  time_linear(cpu, report, "fc", kLayers, rows, kC, 4 * kC, true);
  time_linear(cpu, report, "fcproj", kLayers, rows, 4 * kC, kC, true);
  const int64_t head_rows = std::min<int64_t>(rows, 512);
  time_linear(cpu, report, "lm head (" + std::to_string(head_rows) + " rows)", static_cast<int>(rows / head_rows),
              head_rows, kC, kPaddedVocab, false);
  time_attention(cpu, report, B, T);
  time_layernorm(cpu, report, rows);
  time_gelu(cpu, report, rows);
  time_ends(cpu, report, B, T);
  time_optimizer(cpu, report);
  report.print_step(sgemm_rate);

  std::vector<float> values = random_floats(rows * 4 * kC);
  Fp8Counts counts;
  const double fp8_seconds = seconds_of(
      [&] {
        fp8_quantize(cpu, {values.data(), values.data(), rows * 4 * kC, Fp8Format::e4m3, 100.0f, &counts});
      },
      5);
  std::printf("not in that step: fp8 quantize %.2f ms for (%lld, %d)\n", 1e3 * fp8_seconds,
              static_cast<long long>(rows), 4 * kC);
}
