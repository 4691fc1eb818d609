// Measures training throughput: real steps on the run's data; the result is discarded.
#pragma once

#include "engine/data/loader.h"
#include "engine/model/model.h"
#include "engine/options/run_plan.h"

namespace gpt2 {

struct MeasureLimits {
  int steps;         // maximum
  double seconds;    // no step starts later
  int micro_batches; // per step; fewer than in the run give the update more weight
};

struct MeasuredSteps {
  int steps = 0;
  double tokens_per_second = 0; // from the median step, without the first few, which tune GEMMs and fill caches
  float first_loss = 0, last_loss = 0;
  int skipped = 0; // steps whose loss or gradient norm was not finite
};

// Starts at the first sequence, with the learning rates of the plan. One rank.
MeasuredSteps measure_steps(TrainableModel& model, std::shared_ptr<const Dataset> data, const RunPlan& plan,
                            const MeasureLimits& limits);

} // namespace gpt2
