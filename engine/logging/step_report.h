// The printed line of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpt2 {

struct StepReport {
  int64_t step; // from 1
  int64_t epoch;
  float loss, lr, grad_norm;
  double seconds;
  double tokens_per_second;
  std::optional<double> speed_of_light; // share of the roofline, where known
  double eta_seconds;
  std::string precision; // "FP8", "FP8 (emulated)", ...
  struct MuonStep {
    float adamw_lr, update_norm, adamw_update_norm; // lr and update_norm are the matrices'
  };
  std::optional<MuonStep> muon = {};
};

// step  250 | epoch 0 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234 | dt: 156.78ms | tok/sec: 3345.67 | eta: 2m 05s |
// FP8
std::vector<std::string> step_fields(const StepReport& report); // the parts between the | separators

// The same for a terminal, where all of it fits in 120 columns: short numbers, and no epoch below one epoch.
std::vector<std::string> short_step_fields(const StepReport& report);

} // namespace gpt2
