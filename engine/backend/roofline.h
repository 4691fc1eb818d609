// The roofline: peak tokens per second of a step that consists of GEMMs and attention at the rates measured alone on
// one H200 (docs/benchmarks.md), plus the memory traffic that remains after the best fusion.
#pragma once

#include <optional>

#include "engine/cuda/gpt2_cuda.h"
#include "engine/model/model.h"

namespace gpt2 {

constexpr double kH200CopyBytesPerSecond = 4.2e12;

// H200 only: the rates were measured there, and an H100 or GH200 has other clocks, memory and power. The LM head counts
// as FP8 only if the recipe quantizes it.
std::optional<double> gpu_roofline(const CudaDeviceInfo& device, const ModelOptions& model);
double h200_roofline(const ModelOptions& model);

// Its seconds per token: GEMMs and attention; memory traffic.
struct TokenSeconds {
  double math, memory;
};
TokenSeconds h200_token_seconds(const ModelOptions& model);

// Tokens per second that training reached on an H200: the table of docs/benchmarks.md at T = 1024, interpolated by
// channels. The GEMM rates come from a slower H200, so BF16 may slightly exceed its roofline.
std::optional<double> gpu_expected_speed(const CudaDeviceInfo& device, const ModelOptions& model);

// An estimate for the CPU engine: its GEMM rate, measured now in some hundredths of a second, and the model's FLOPs.
struct CpuSpeed {
  double gemm_flops, tokens_per_second;
};
CpuSpeed estimate_cpu_speed(const ModelOptions& model);

} // namespace gpt2
