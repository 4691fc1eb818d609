// Options with every "auto" resolved: what this run will do, in numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/checkpoint/pruning.h"
#include "engine/model/model.h"
#include "engine/options/lr_schedule.h"
#include "engine/options/options.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

// How the sequences of one optimizer step are cut: target = ranks * batch_size * accumulation, exactly.
struct BatchPlan {
  int batch_size;   // sequences per micro-batch on each rank
  int accumulation; // micro-batches per step on each rank
};

// Throws Error(usage) that proposes the nearest values that divide.
BatchPlan plan_batches(int target_batch_size, int batch_size, int ranks);

// Blocks as a user types them, "first,last,3-5": numbers count from 0; the result is sorted, each block once, and an
// empty list is no block. Throws Error(usage) that names `flag` for a word that is no block of a model of `layers`.
std::vector<int> parse_layer_list(const std::string& flag, const std::string& list, int layers);

struct RunPlan {
  Options options; // resolved, so that a checkpoint can say what its run did
  ModelOptions model;
  int target_batch_size;
  BatchPlan batch;
  int64_t max_steps;
  Schedule schedule;
  int64_t eval_sequences;
  std::vector<std::string> notes; // one line for each default that followed the data

  int ranks() const { return target_batch_size / (batch.batch_size * batch.accumulation); }
  bool wants_evaluation() const { return options.eval_freq > 0 || options.eval_at_start; } // there may be no data
  int64_t tokens_per_step() const { return static_cast<int64_t>(target_batch_size) * model.seq_len; }
};

// The shape that --model, --layers, --heads, --channels and --seq_len ask for. Throws Error(usage).
GPT2Config resolve_config(const Options& options, bool gpu);

// The part of the options that chooses and opens the hardware.
BackendOptions backend_options(const Options& options);
// The same for one of several ranks: its own GPU, its share of the cores.
BackendOptions backend_options(const Options& options, const RankGroup& group);

// Which checkpoints stay. --keep_checkpoints auto follows this start's --max_steps, so a checkpoint stores it as auto.
KeepRule keep_rule(const Options& resolved);

// --checkpoint_dir, or what it is by default.
std::string checkpoint_dir_for(const Options& options, Precision precision);

// The learning rates of a run whose options are resolved, such as a checkpoint's.
Schedule schedule_of(const Options& resolved);

// Of what AdamW updates, in a step with the schedule's rate `lr`: under Muon that is the matrices'.
float adamw_rate(const Options& resolved, float lr);

// Of one step at this rate.
UpdateSettings update_settings(const Options& options, float lr);

int64_t automatic_bf16_steps(int64_t warmup_steps, int64_t max_steps); // --fp8_bf16_steps auto

// The model as it is for most of its run: what FP8 does, whenever it begins.
ModelOptions steady_state(ModelOptions options);

// Defaults follow the data: a run that nobody gave a length stops after 40 epochs, and one that nobody gave a batch
// takes at least 8 steps for an epoch. Throws Error(usage) for a batch beyond the data set.
RunPlan make_plan(const Options& options, const GPT2Config& config, Precision precision, int64_t train_sequences,
                  Backend& backend, int ranks);

} // namespace gpt2
