// Options with every "auto" resolved: what this run will do, in numbers.
#pragma once

#include <cstdint>

#include "engine/backend/backend.h"
#include "engine/model/model.h"
#include "engine/train/batch_plan.h"
#include "engine/train/options.h"
#include "engine/train/schedule.h"

namespace gpt2 {

struct RunPlan {
  Options options; // resolved, so that a checkpoint can say what its run did
  ModelOptions model;
  int target_batch_size;
  BatchPlan batch;
  int64_t max_steps;
  Schedule schedule;
  int64_t eval_sequences;

  int64_t tokens_per_step() const { return static_cast<int64_t>(target_batch_size) * model.seq_len; }
};

// The shape that --model, --layers, --heads, --channels and --seq_len ask for. Throws Error(usage).
GPT2Config resolve_config(const Options& options, bool gpu);

// The part of the options that chooses and opens the hardware.
BackendOptions backend_options(const Options& options);

RunPlan make_plan(const Options& options, const GPT2Config& config, Precision precision, int64_t train_sequences,
                  Backend& backend, int ranks);

} // namespace gpt2
