#include "engine/backend/roofline.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "engine/base/stopwatch.h"
#include "kernels/fused_epilogues.h"
#include "kernels/gemm.h"

namespace gpt2 {
namespace {

// TFLOP/s of forward + dgrad + wgrad over 65,536 tokens on one H200 SXM (CUDA 13.0, cuBLASLt 13.1, 2026-11).
struct GemmRates {
  double channels, block_bf16, block_fp8, head_bf16, head_fp8;
  double reached_bf16, reached_fp8; // share of the roofline that training reached, on a faster H200
};
constexpr std::array<GemmRates, 4> kMeasured = {{
    {768, 690, 1132, 727, 1298, 0.999, 0.972},
    {1024, 708, 1208, 726, 1243, 1.006, 0.983},
    {1280, 689, 1234, 692, 1333, 1.013, 0.980},
    {1600, 694, 1240, 691, 1292, 0.992, 0.945},
}};
constexpr double kAttentionSeconds = 1.94e-14; // per layer, channel, token and context token: both passes, kernels/sm90
constexpr double kElementwiseBytes = 92;       // per layer, channel and token, every cast fused into its producer
constexpr double kGeluBytesSaved = 28;         // if GELU and its gradient are GEMM epilogues (kernels/sm90)
constexpr double kHeadBytes = 6;               // per token and logit: logits read twice, gradients written twice
// Assumed, not measured: the share of the GEMM rate that steps of the CPU engine reach.
constexpr double kCpuShare = 0.5, kCpuShareFp8 = 0.25;
constexpr double kHeadBytesSaved = 2; // if softmax's sums are a GEMM epilogue

double interpolate(double channels, double GemmRates::*rate) {
  if (channels <= kMeasured.front().channels) return kMeasured.front().*rate;
  for (size_t i = 1; i < kMeasured.size(); ++i) {
    const GemmRates &a = kMeasured[i - 1], &b = kMeasured[i];
    if (channels > b.channels) continue;
    const double share = (channels - a.channels) / (b.channels - a.channels);
    return a.*rate + share * (b.*rate - a.*rate);
  }
  return kMeasured.back().*rate;
}

} // namespace

std::optional<double> gpu_roofline(const CudaDeviceInfo& device, const ModelOptions& model) {
  if (device.name.find("H200") == std::string::npos || device.name.find("GH200") != std::string::npos)
    return std::nullopt;
  return h200_roofline(model);
}

std::optional<double> gpu_expected_speed(const CudaDeviceInfo& device, const ModelOptions& model) {
  const std::optional<double> peak = gpu_roofline(device, model);
  if (!peak) return std::nullopt;
  const bool fp8 = model.precision == Precision::fp8;
  return *peak * interpolate(model.config.channels, fp8 ? &GemmRates::reached_fp8 : &GemmRates::reached_bf16);
}

double h200_roofline(const ModelOptions& model) {
  const auto [math, memory] = h200_token_seconds(model);
  return 1 / (math + memory);
}

TokenSeconds h200_token_seconds(const ModelOptions& model) {
  const GPT2Config& config = model.config;
  const bool fp8 = model.precision == Precision::fp8, fp8_head = fp8 && model.fp8.lm_head;
  const double L = config.layers, C = config.channels;
  const double block_flops = 72 * L * C * C; // per token: 12 C^2 weights per block, 6 FLOPs each
  const double head_flops = 6.0 * config.padded_vocab * C;
  const double block_bytes = kElementwiseBytes - (fp8 && fuses_gelu(config.channels) ? kGeluBytesSaved : 0);
  const double head_bytes =
      kHeadBytes - (fp8_head && fuses_softmax(config.channels, config.padded_vocab) ? kHeadBytesSaved : 0);
  return {.math = block_flops / (1e12 * interpolate(C, fp8 ? &GemmRates::block_fp8 : &GemmRates::block_bf16)) +
                  head_flops / (1e12 * interpolate(C, fp8_head ? &GemmRates::head_fp8 : &GemmRates::head_bf16)) +
                  kAttentionSeconds * L * C * model.seq_len,
          .memory = (block_bytes * L * C + head_bytes * config.padded_vocab) / kH200CopyBytesPerSecond};
}

CpuSpeed estimate_cpu_speed(const ModelOptions& model) {
  constexpr int kRows = 128, kFewestGemms = 3;
  constexpr double kGemmSeconds = 0.02;
  const double L = model.config.layers, C = model.config.channels, T = model.seq_len;
  const int channels = model.config.channels;
  const std::vector<float> in(static_cast<size_t>(kRows) * channels),
      weight(static_cast<size_t>(4) * channels * channels);
  std::vector<float> out(static_cast<size_t>(4) * kRows * channels);
  Cpu cpu;
  const GemmForward<float> gemm{.out = out.data(),
                                .in = in.data(),
                                .weight = weight.data(),
                                .bias = nullptr,
                                .rows = kRows,
                                .C = channels,
                                .OC = 4 * channels};
  gemm_forward(cpu, gemm);                                  // starts the threads
  double fastest = std::numeric_limits<double>::infinity(); // other programs interrupt some of them
  const Stopwatch watch;
  for (int count = 0; count < kFewestGemms || watch.seconds() < kGemmSeconds; ++count) {
    const Stopwatch one;
    gemm_forward(cpu, gemm);
    fastest = std::min(fastest, one.seconds());
  }
  const double rate = 8.0 * kRows * C * C / fastest;
  const double flops = 6 * (12 * L * C * C + C * model.config.padded_vocab) + 12 * L * C * T;
  const double share = model.precision == Precision::fp8 ? kCpuShareFp8 : kCpuShare;
  return {.gemm_flops = rate, .tokens_per_second = share * rate / flops};
}

} // namespace gpt2
