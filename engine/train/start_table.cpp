#include "engine/train/start_table.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "engine/base/log.h"
#include "engine/train/console.h"
#include "engine/train/fp8_health.h"

namespace gpt2 {
namespace {

std::string count(double value) { return format_count(value); }

std::string text(const char* format, double value) {
  char out[64];
  std::snprintf(out, sizeof out, format, value);
  return out;
}

std::string data_text(const Dataset& dataset, const std::string& source) {
  return source + ": " + count(static_cast<double>(dataset.tokens())) + " tokens in " +
         std::to_string(dataset.shards()) + (dataset.shards() == 1 ? " shard, " : " shards, ") +
         count(static_cast<double>(dataset.sequences())) + " sequences";
}

std::string batch_text(const RunPlan& plan, int ranks) {
  return std::to_string(plan.target_batch_size) + " sequences = " + std::to_string(plan.batch.batch_size) +
         " per micro-batch x " + std::to_string(plan.batch.accumulation) + " accumulated x " + std::to_string(ranks) +
         (ranks == 1 ? " rank" : " ranks") + " = " + count(static_cast<double>(plan.tokens_per_step())) +
         " tokens per step";
}

std::string steps_text(const RunPlan& plan, const RunData& data) {
  const double samples = static_cast<double>(plan.max_steps) * plan.target_batch_size;
  return std::to_string(plan.max_steps) + " = " + count(samples * plan.model.seq_len) +
         " tokens = " + text("%.2f", samples / static_cast<double>(data.train->sequences())) + " epochs";
}

std::string optimizer_text(const RunPlan& plan) {
  const Options& o = plan.options;
  return "AdamW, lr " + text("%.2e", plan.schedule.max_lr) + " " + o.lr_schedule + " to " +
         text("%.2e", static_cast<double>(plan.schedule.max_lr) * o.min_lr_ratio) + ", warm-up " +
         std::to_string(plan.schedule.warmup_steps) +
         (plan.schedule.warmup_steps == 1 ? " step, betas " : " steps, betas ") + text("%g", o.beta1) + " " +
         text("%g", o.beta2) + ", decay " + text("%g", o.weight_decay) + ", clip " + text("%g", o.grad_clip);
}

std::string precision_text(const RunPlan& plan, ObservableModel& model) {
  const Options& o = plan.options;
  if (plan.model.precision != Precision::fp8) return model.precision_label();
  const std::vector<int> in_bf16 = unquantized_blocks(model.fp8_stats(), plan.model.config.layers);
  return model.precision_label() + ", " + o.fp8_format + ", " + o.fp8_recipe + " scaling, margin " +
         std::to_string(o.fp8_margin) + ", interval " + std::to_string(o.fp8_interval) + ", amax history " +
         std::to_string(o.fp8_amax_history) + (o.fp8_lm_head ? ", LM head too" : ", LM head not") +
         (in_bf16.empty() ? "" : ", " + block_list(in_bf16) + " not") +
         (o.fp8_auto_fallback ? "" : ", no automatic fallback");
}

std::string memory_text(const ObservableModel& model) {
  int64_t total = 0;
  std::string parts;
  for (const auto& line : model.memory_report()) {
    total += line.bytes;
    parts += (parts.empty() ? "" : ", ") + line.purpose + " " + format_bytes(static_cast<double>(line.bytes));
  }
  return format_bytes(static_cast<double>(total)) + ": " + parts;
}

std::string every(int64_t frequency, const std::string& otherwise) {
  return frequency > 0 ? "every " + std::to_string(frequency) + " steps" : otherwise;
}

} // namespace

std::string start_table(const RunPlan& plan, const RunData& data, ObservableModel& model, int ranks,
                        const std::string& log_folder) {
  const Options& o = plan.options;
  const GPT2Config& config = plan.model.config;
  TableRows rows{
      {"model", config.name + ": " + std::to_string(config.layers) + " layers, " + std::to_string(config.heads) +
                    " heads, " + std::to_string(config.channels) + " channels, sequences of " +
                    std::to_string(config.seq_len)},
      {"parameters", count(static_cast<double>(parameter_count(config)))},
      {"device", model.device_name()},
      {"precision", precision_text(plan, model)},
      {"train data", data_text(*data.train, data.built_in ? "built-in sample" : o.train_data)},
  };
  if (data.validation) {
    const int64_t used = std::min(plan.eval_sequences, data.validation->sequences());
    rows.push_back({"val data", data_text(*data.validation, data.built_in ? "built-in sample" : o.val_data) + "; " +
                                    std::to_string(used) + " evaluated " + every(o.eval_freq, "never")});
  }
  rows.insert(rows.end(),
              {{"batch", batch_text(plan, ranks)},
               {"steps", steps_text(plan, data)},
               {"optimizer", optimizer_text(plan)},
               {"memory", memory_text(model)},
               {"checkpoints", o.checkpoint_dir + ", " + every(o.checkpoint_freq, "at the end")},
               {"logs", log_folder + (o.use_tensorboard ? " (tensorboard --logdir " + o.log_dir + ")" : "")},
               {"seed", std::to_string(o.seed)}});
  return format_table(rows);
}

std::string new_run_name(const GPT2Config& config, Precision precision) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char date[32];
  std::strftime(date, sizeof date, "%Y%m%d-%H%M%S", &local);
  return config.name + "-" + to_string(precision) + "-" + date;
}

} // namespace gpt2
