// The speed of light: tokens per second if a step were nothing but library matrix products and attention at the rates
// measured on one H200 (docs/benchmarks.md), plus the memory traffic that the best fusion still needs.
#pragma once

#include "engine/model/config.h"
#include "engine/model/model.h"

namespace gpt2 {

// For Hopper (compute capability 9.0); precision bf16 or fp8.
double hopper_light_speed(const GPT2Config& config, int seq_len, Precision precision);

} // namespace gpt2
