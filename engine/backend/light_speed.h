// The speed of light: tokens per second if a step were nothing but library matrix products and attention at the rates
// measured on one H200 (docs/benchmarks.md), plus the memory traffic that the best fusion still needs.
#pragma once

#include <optional>

#include "engine/cuda/gpt2_cuda.h"
#include "engine/model/model.h"

namespace gpt2 {

constexpr double kH200CopyBytesPerSecond = 4.2e12;

// Only for the GPU that the rates were measured on: an H100 or GH200 has other clocks, memory and power. The LM head
// counts as FP8 only where the recipe quantizes it.
std::optional<double> gpu_light_speed(const CudaDeviceInfo& device, const ModelOptions& model);
double h200_light_speed(const ModelOptions& model);

// What our engine reached on that GPU, as its share of that speed: the table of docs/benchmarks.md at T = 1024, between
// its rows interpolated by channels. Machines differ: the products were timed on a slower one, so BF16 may be a little
// beyond 1.
std::optional<double> gpu_usual_speed(const CudaDeviceInfo& device, const ModelOptions& model);

} // namespace gpt2
