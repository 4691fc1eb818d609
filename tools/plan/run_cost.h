// Cost of a planned run: steps, time, disk. For a resumed run: of the remaining steps.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/options/run_plan.h"
#include "engine/run/checkpoint_cost.h"

namespace gpt2 {

struct LearningRates {
  float first = 0, peak = 0, last = 0;
};

struct RunCost {
  int64_t steps = 0, tokens = 0;   // remaining
  double tokens_per_parameter = 0; // of the whole run
  double epochs = 0;               // of the whole run
  LearningRates rates;
  CheckpointCost checkpoints;
  int64_t evaluations = 0;
  // nullopt: unknown speed.
  std::optional<double> step_seconds = {};
  std::optional<double> seconds = {}; // steps and evaluations, without samples and checkpoints
};

// `done`: steps of the resumed checkpoint. `evaluated`: sequences per evaluation, 0: no evaluations.
// `tokens_per_second`: of all ranks together.
RunCost cost_of(const RunPlan& plan, int64_t done, int64_t train_sequences, int64_t evaluated,
                std::optional<double> tokens_per_second);

} // namespace gpt2
