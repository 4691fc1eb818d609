// What a planned run costs, in numbers: arithmetic on its plan, the speed and the disk. All of what is still to be
// done; of a resumed run, the rest.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/options/run_plan.h"

namespace gpt2 {

struct CheckpointCost {
  int64_t bytes_each = 0;
  int64_t kept = 0; // that stand on the disk when the run ends
  int64_t most = 0; // at any moment: one more while an old one goes
  int64_t bytes() const;
};

struct LearningRates {
  float first = 0, peak = 0, last = 0;
};

struct RunCost {
  int64_t steps = 0, tokens = 0;   // to do
  double tokens_per_parameter = 0; // of the whole run
  double epochs = 0;               // of the whole run
  LearningRates rates;
  CheckpointCost checkpoints;
  int64_t evaluations = 0;
  // Where the speed is known.
  std::optional<double> step_seconds = {};
  std::optional<double> seconds = {}; // steps and evaluations; samples and saves are small beside them
};

// `done`: steps of the checkpoint that the run goes on from. `evaluated`: sequences of one evaluation, 0: there are
// none. `tokens_per_second` of all ranks together.
RunCost cost_of(const RunPlan& plan, int64_t done, int64_t train_sequences, int64_t evaluated,
                std::optional<double> tokens_per_second);

} // namespace gpt2
