// Options with every "auto" resolved to numbers.
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

// The split of one optimizer step: target = ranks * batch_size * accumulation, exactly.
struct BatchPlan {
  int batch_size;   // sequences per micro-batch on each rank
  int accumulation; // micro-batches per step on each rank
};

// --batch_ramp, or --target_batch_size in every step; auto: one sequence.
BatchRamp ramp_of(const Options& options);

// Throws Error(usage) with the nearest values that divide.
BatchPlan plan_batches(int target_batch_size, int batch_size, int ranks);

// --fp8_bf16_layers "first,last,3-5" of a model of `layers` blocks: numbers count from 0, the result is sorted and
// unique. Throws Error(usage) for anything but its blocks.
std::vector<int> parse_layer_list(const std::string& list, int layers);

struct RunPlan {
  Options options; // resolved, as checkpoints store them
  ModelOptions model;
  BatchRamp ramp;        // sequences per step
  int target_batch_size; // the last ones of the ramp
  BatchPlan batch;       // of target_batch_size
  int64_t max_steps;
  Schedule schedule;
  int64_t eval_sequences;
  std::vector<std::string> notes; // one line per default that depends on the data

  int ranks() const { return target_batch_size / (batch.batch_size * batch.accumulation); }
  bool wants_evaluation() const { return options.eval_freq > 0 || options.eval_at_start; } // there may be no data
  int64_t tokens_per_step() const { return static_cast<int64_t>(target_batch_size) * model.seq_len; }
  // Of one step, which counts from 0.
  int64_t tokens_at(int64_t step) const { return static_cast<int64_t>(ramp.at(step)) * model.seq_len; }
  int accumulation_at(int64_t step) const { return ramp.at(step) / (ranks() * batch.batch_size); }
};

// The shape of --model, --layers, --heads, --channels and --seq_len. Throws Error(usage).
GPT2Config resolve_config(const Options& options, bool gpu);

// The options that select and open the hardware; of several ranks, one's GPU and its share of the cores.
BackendOptions backend_options(const Options& options, const RankGroup& group = {});

// Which checkpoints are kept. Checkpoints store --keep_checkpoints auto as auto: it depends on this start's
// --max_steps.
KeepRule keep_rule(const Options& resolved);

// --checkpoint_dir, or its default.
std::string checkpoint_dir_for(const Options& options, Precision precision);

// The schedule of resolved options, such as a checkpoint's.
Schedule schedule_of(const Options& resolved);

// AdamW's learning rate in a step with the schedule's rate `lr`, which with Muon is that of the matrices.
float adamw_rate(const Options& resolved, float lr);

// Settings of one step at this rate.
UpdateSettings update_settings(const Options& options, float lr);

int64_t automatic_bf16_steps(int64_t warmup_steps, int64_t max_steps); // --fp8_bf16_steps auto

// The model after its BF16 start, as for most of the run.
ModelOptions steady_state(ModelOptions options);

// Defaults depend on the data: without --max_steps and --num_epochs a run has at most 40 epochs, and without
// --target_batch_size an epoch has at least 8 steps. Throws Error(usage) for a batch larger than the data.
RunPlan make_plan(const Options& options, const GPT2Config& config, Precision precision, int64_t train_sequences,
                  Backend& backend, int ranks);

// Folders to search for checkpoints: --checkpoint_dir, or without it every default one.
std::vector<std::string> checkpoint_dirs(const Options& options);

} // namespace gpt2
