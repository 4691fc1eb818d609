// How fast this machine trains a run's model: some real steps on its data, of which nothing is kept.
#pragma once

#include "engine/data/loader.h"
#include "engine/model/model.h"
#include "engine/options/run_plan.h"

namespace gpt2 {

struct MeasureLimits {
  int steps;         // at most
  double seconds;    // no step begins after them
  int micro_batches; // of each step; fewer than the run's own make an update weigh more
};

struct MeasuredSteps {
  int steps = 0;
  double tokens_per_second = 0; // by the median step, without the first few, which tune and fill caches
  float first_loss = 0, last_loss = 0;
  int skipped = 0; // steps whose loss or gradient norm was not finite
};

// From the first sequences of the data on, with the plan's learning rates. One rank.
MeasuredSteps measure_steps(TrainableModel& model, std::shared_ptr<const Dataset> data, const RunPlan& plan,
                            const MeasureLimits& limits);

} // namespace gpt2
