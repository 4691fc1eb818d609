#include <cmath>
#include <cstring>

#include "engine/base/formatted.h"
#include "engine/base/rng.h"
#include "engine/base/stopwatch.h"
#include "kernels/fp8_quantize.h"
#include "kernels/gemm.h"
#include "tools/doctor/checks.h"

namespace gpt2 {
namespace {

std::vector<float> normal_values(size_t count, uint64_t seed) {
  const Rng rng(seed);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rng.normal(i));
  return values;
}

// Rounds to FP8 with the training kernel. False if a value differs from encoding and decoding it.
bool quantize(Cpu& cpu, std::vector<float>& values, Fp8Format format) {
  const float scale = fp8_max(format) / 5;
  const std::vector<float> before = values;
  Fp8Counts counts;
  fp8_quantize(cpu, {.out = values.data(),
                     .in = before.data(),
                     .count = static_cast<int64_t>(values.size()),
                     .format = format,
                     .scale = scale,
                     .counts = &counts});
  for (size_t i = 0; i < values.size(); ++i)
    if (std::fabs(values[i] * scale - fp8_decode(fp8_encode(before[i] * scale, format), format)) >
        1e-6f * std::fabs(values[i] * scale))
      return false;
  return true;
}

// in (R, C) times weight^T (OC, C) against double precision: the largest error, relative to sqrt(C).
double gemm_error(const std::vector<float>& out, const std::vector<float>& in, const std::vector<float>& weight,
                  size_t R, size_t C, size_t OC) {
  double worst = 0;
  for (size_t r = 0; r < R; ++r) {
    for (size_t o = 0; o < OC; ++o) {
      double sum = 0;
      for (size_t c = 0; c < C; ++c) sum += static_cast<double>(in[r * C + c]) * static_cast<double>(weight[o * C + c]);
      worst = std::max(worst, std::fabs(out[r * OC + o] - sum) / std::sqrt(static_cast<double>(C)));
    }
  }
  return std::isfinite(worst) ? worst : INFINITY;
}

void check_emulated_gemm(const Report& report) {
  constexpr size_t R = 64, C = 256, OC = 128;
  constexpr double kTolerance = 1e-5; // FP32 sums, K = 256
  Cpu cpu;
  std::vector<float> in = normal_values(R * C, 1), weight = normal_values(OC * C, 2), out(R * OC);
  const bool on_grid = quantize(cpu, in, Fp8Format::e5m2) && quantize(cpu, weight, Fp8Format::e4m3);
  gemm_forward(
      cpu, {.out = out.data(), .in = in.data(), .weight = weight.data(), .bias = nullptr, .rows = R, .C = C, .OC = OC});
  const double error = gemm_error(out, in, weight, R, C, OC);
  const std::string what = formatted("emulated FP8 GEMM: relative error %.1e", error);
  if (on_grid && error < kTolerance) return report({"FP8 on the CPU", Level::ok, what});
  report({"FP8 on the CPU", Level::fail, what + (on_grid ? "" : "; its operands are not FP8 values"),
          "rebuild (make clean; make); if that does not help, use another OpenBLAS", ExitCode::numerics});
}

void check_rates(const Report& report) {
  constexpr int N = 1024;
  constexpr double kSeconds = 0.2;
  Cpu cpu;
  const std::vector<float> in = normal_values(size_t{N} * N, 3), weight = normal_values(size_t{N} * N, 4);
  std::vector<float> out(size_t{N} * N);
  const auto per_second = [&](const auto& work) {
    work();
    int count = 0;
    const Stopwatch watch;
    for (; watch.seconds() < kSeconds; ++count) work();
    return count / watch.seconds();
  };
  const double gemms = per_second([&] {
    gemm_forward(
        cpu,
        {.out = out.data(), .in = in.data(), .weight = weight.data(), .bias = nullptr, .rows = N, .C = N, .OC = N});
  });
  std::vector<char> from(size_t{64} << 20, 1), to(from.size());
  const double memcpys = per_second([&] { std::memcpy(to.data(), from.data(), from.size()); });
  report({"CPU engine", Level::ok,
          formatted("FP32 GEMM %.0f GFLOP/s, memcpy %.1f GB/s on one thread", gemms * 2.0 * N * N * N / 1e9,
                    memcpys * 2.0 * static_cast<double>(from.size()) / 1e9)});
}

} // namespace

void check_cpu_engine(const Report& report) {
  check(report, "FP8 on the CPU", [&] { check_emulated_gemm(report); });
  check(report, "CPU engine", [&] { check_rates(report); });
}

} // namespace gpt2
