#include "engine/run/summary.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/backend/roofline.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/shell_quote.h"
#include "engine/checkpoint/names.h"
#include "engine/run/fp8_monitor.h"
#include "engine/run/session.h"
#include "engine/system/files.h"
#include "engine/system/process.h"

namespace gpt2 {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>; // of a TableSection

std::string count(auto number) { return format_count(static_cast<double>(number)); }

std::string steps_text(const RunPlan& plan, const RunData& data) {
  const double samples = plan.ramp.sequences_before(plan.max_steps);
  return concat(plan.max_steps, " = ", count(samples * plan.model.seq_len),
                " tokens = ", formatted("%.2f epochs", samples / static_cast<double>(data.train->sequences())));
}

std::string precision_text(const RunPlan& plan, ObservableModel& model) {
  const Options& o = plan.options;
  if (plan.model.precision != Precision::fp8) return model.precision_label();
  const std::vector<Fp8TensorStats> stats = model.fp8_stats(); // empty before FP8 begins
  const std::vector<int> in_bf16 =
      stats.empty() ? plan.model.fp8.bf16_layers : unquantized_blocks(stats, plan.model.config.layers);
  return concat(model.precision_label(), model.before_fp8() ? concat(" from step ", o.fp8_bf16_steps + 1, " on") : "",
                ", ", name_of(o.fp8_format), ", ", name_of(o.fp8_recipe), " scaling",
                o.fp8_current_steps > 0 ? " after " + counted(o.fp8_current_steps, "step") + " of current" : "",
                ", margin ", o.fp8_margin, ", interval ", o.fp8_interval, ", amax history ", o.fp8_amax_history,
                ", LM head in ", o.fp8_lm_head ? "FP8" : "BF16",
                in_bf16.empty() ? "" : ", " + block_list(in_bf16) + " in BF16",
                o.fp8_auto_fallback ? "" : ", no automatic fallback");
}

// "bin/report", or its path where the current folder is not the tree.
std::string tool_command(const std::string& name) {
  const std::string usual = "bin/" + name, found = find_in_tree(usual);
  std::error_code absent;
  return found.empty() || std::filesystem::equivalent(found, usual, absent) ? usual : shell_quote(found);
}

std::string every(int64_t frequency, const std::string& otherwise) {
  return frequency > 0 ? "every " + counted(frequency, "step") : otherwise;
}

// Which checkpoints are kept, by resolved options.
std::string kept_text(const Options& o) {
  const KeepRule rule = keep_rule(o);
  if (rule.newest == 0) return "all are kept";
  return concat("kept: the newest", rule.newest > 1 ? concat(" ", rule.newest) : "", ", the best",
                rule.every > 0 ? " and every " + counted(rule.every, "step") : "",
                rule.before_cooldown > 0 ? concat(", step ", rule.before_cooldown, " before the cooldown") : "",
                " (--keep_checkpoints all: all)");
}

constexpr double kLongStep = 60; // seconds

// Before the first step: a step of a large model on a CPU may take hours.
void add_expected_time(const Session& session, Rows& rows) {
  const RunPlan& plan = session.plan;
  const bool gpu = session.backend.is_gpu();
  const std::optional<double> known = gpu ? session.backend.expected_speed(plan.model) : std::nullopt;
  if (!session.work_left() || !session.group.leads() || (gpu && !known)) return;
  const CpuSpeed cpu = gpu ? CpuSpeed{} : estimate_cpu_speed(plan.model);
  const double speed = (gpu ? *known : cpu.tokens_per_second) * plan.ranks();
  const double step = static_cast<double>(plan.tokens_per_step()) / speed;
  const double sequences = plan.ramp.sequences_before(plan.max_steps) - plan.ramp.sequences_before(session.state.step);
  rows.push_back(
      {"time", "about " + format_duration(step) + " a step, " +
                   format_duration(sequences * plan.model.seq_len / speed) + " in all: an estimate, from " +
                   (gpu ? "docs/benchmarks.md" : formatted("FP32 GEMMs at %.0f GFLOP/s", cpu.gemm_flops / 1e9))});
  if (step > kLongStep && !gpu)
    rows.push_back({"", "Ctrl-C stops between micro-batches, about " + format_duration(step / plan.batch.accumulation) +
                            " each, and saves the last finished step"});
}

} // namespace

std::string data_text(const Dataset& dataset, const std::string& source) {
  return source + ": " + count(dataset.tokens()) + " tokens in " + counted(dataset.shards(), "shard") + ", " +
         count(dataset.sequences()) + " sequences";
}

std::string batch_text(const RunPlan& plan) {
  const bool ramp = plan.ramp.phases().size() > 1;
  return concat(
      ramp ? concat(to_text(plan.ramp), "; ", plan.target_batch_size) : counted(plan.target_batch_size, "sequence"),
      " = ", plan.batch.batch_size, " per micro-batch x ", plan.batch.accumulation, " accumulated x ",
      counted(plan.ranks(), "rank"), " = ", count(plan.tokens_per_step()), " tokens per step");
}

std::string optimizer_text(const RunPlan& plan) {
  const Options& o = plan.options;
  const bool muon = o.optimizer == Optimizer::muon;
  return concat(muon ? "Muon" : "AdamW", formatted(", lr %.2e ", plan.schedule.max_lr),
                muon ? formatted("(AdamW's %.2e) ", o.adamw_lr) : "", name_of(o.lr_schedule),
                formatted(" to %.2e, warm-up ", static_cast<double>(plan.schedule.max_lr) * o.min_lr_ratio),
                counted(plan.schedule.warmup_steps, "step"),
                formatted(", betas %g %g, decay %g, clip %g", o.beta1, o.beta2, o.weight_decay, o.grad_clip));
}

std::string memory_text(const std::vector<MemoryLine>& lines) {
  std::string parts, on_host;
  for (const auto& [purpose, bytes, pinned_host] : lines) {
    std::string& list = pinned_host ? on_host : parts;
    list += (list.empty() ? "" : ", ") + purpose + " " + format_bytes(static_cast<double>(bytes));
  }
  return format_bytes(static_cast<double>(device_bytes(lines))) + ": " + parts +
         (on_host.empty() ? "" : "; on the host " + on_host);
}

std::vector<TableSection> start_table(const Session& session) {
  const RunPlan& plan = session.plan;
  const RunData& data = session.data;
  ObservableModel& model = *session.model;
  const Options& o = plan.options;
  const GPT2Config& config = plan.model.config;
  Rows data_rows{{"train data", data_text(*data.train, data.train_from)}};
  if (data.validation) {
    const int64_t used = std::min(plan.eval_sequences, data.validation->sequences());
    const std::string evaluated = plan.wants_evaluation()
                                      ? concat(used, " evaluated ", every(o.eval_freq, "at the start"))
                                      : "not evaluated (--eval_freq 0)";
    data_rows.push_back({"val data", data_text(*data.validation, data.validation_from) + "; " + evaluated});
  }
  Rows training{{"batch", batch_text(plan)}, {"steps", steps_text(plan, data)}, {"optimizer", optimizer_text(plan)}};
  add_expected_time(session, training);
  training.push_back({"seed", std::to_string(o.seed)});
  return {{"Model",
           {{"model", config.name + ": " + shape_text(config)},
            {"parameters", count(parameter_count(config))},
            {"device", model.device_name()},
            {"precision", precision_text(plan, model)},
            {"memory", memory_text(model.memory_report())}}},
          {"Data", data_rows},
          {"Output",
           {{"checkpoints",
             session.checkpoints.path() + ", " + every(o.checkpoint_freq, "at the end") + "; " + kept_text(o)},
            {"logs", session.place.logs() +
                         (o.use_tensorboard ? " (tools/start_tensorboard.sh --logdir " + o.log_dir + ")" : "")}}},
          {"Training", training}};
}

std::string fp8_line(const Session& session) {
  const Fp8FormatChoice format = session.plan.options.fp8_format;
  const std::string meaning = format == Fp8FormatChoice::hybrid ? "E4M3 forward, E5M2 backward"
                              : format == Fp8FormatChoice::e4m3 ? "E4M3 forward and backward"
                                                                : "E5M2 forward and backward, E4M3 weights";
  return "FP8 Training Enabled: " + name_of(format) + " (" + meaning + ")" +
         (session.backend.is_gpu() ? "" : " (emulated on the CPU)");
}

std::string reason_of(Verdict skipped) {
  switch (skipped) {
    case Verdict::skipped_loss_z:
      return "its loss is an outlier (--skip_loss_z)";
    case Verdict::skipped_norm_z:
      return "its gradient norm is an outlier (--skip_grad_z)";
    default:
      return "its loss or gradient norm is not finite";
  }
}

std::string skip_line(int64_t step, Verdict verdict, int in_a_row, int limit) {
  return concat("step ", step, " skipped, the weights are unchanged: ", reason_of(verdict), " (", in_a_row,
                " in a row, stops at ", limit, ")");
}

std::string validation_line(int64_t step, double loss, bool is_best, double best_loss) {
  const std::string best = best_loss < kNoLoss ? formatted(" | best: %.6f", best_loss) : "";
  return concat("step ", step, formatted(" | val loss: %.6f", loss), is_best ? " | best so far" : best);
}

std::string hellaswag_line(int64_t step, const Accuracy& scores) {
  return concat("step ", step,
                formatted(" | HellaSwag: %.4f per token | %.4f per byte | %.4f summed | ", scores.per_token,
                          scores.per_byte, scores.summed),
                counted(scores.tasks, "task"));
}

std::string closing_lines(const Session& session, double seconds, int64_t first_tokens, float train_loss) {
  const TrainState& state = session.state;
  const auto tokens = static_cast<double>(state.tokens - first_tokens);
  const bool trained = tokens > 0;
  const std::string done = "done: " + counted(state.step, "step") + ", " + count(state.tokens) + " tokens; " +
                           (first_tokens > 0 ? "since the resume " : "") + format_duration(seconds) +
                           (trained ? ", " + count(tokens / std::max(seconds, 1e-9)) + " tokens/s on average" : "");
  const bool evaluated = state.last_val_step == state.step;
  const std::string best = state.best_val_loss < kNoLoss
                               ? (evaluated ? ", best " : ", best val loss ") + formatted("%.3f", state.best_val_loss)
                               : "";
  const std::optional<double> entropy = session.data.entropy;
  if (!trained && !evaluated) return done;
  return done + "\n" +
         (evaluated ? "val loss " + formatted("%.3f", state.last_val_loss)
                    : "train loss " + formatted("%.3f", static_cast<double>(train_loss)) + " in the last step") +
         best +
         (evaluated && entropy
              ? ", the grammar's own entropy is " + formatted("%.3f", *entropy) + " nats: no model can do better"
              : "");
}

std::vector<std::string> next_commands(const Session& session) {
  const Options& o = session.plan.options;
  const std::string run = session.checkpoints.path(), best = run + "/" + kBest;
  const std::string model = shell_quote(follow_marker(run, kBest).empty() ? run : best);
  const std::string tokenizer = o.tokenizer.empty() ? "" : " --tokenizer " + shell_quote(o.tokenizer);
  std::vector<std::string> commands{tool_command("generate") + " " + model + " --prompt " +
                                    shell_quote(o.prompt.empty() ? "Once upon a time" : o.prompt) + tokenizer};
  if (session.data.built_in || o.document_mask) // no shards for bin/evaluate, or none with the mask
    commands.push_back(shell_quote(program_as_called()) + " --resume " + model + " --eval_only");
  else if (session.data.validation)
    commands.push_back(tool_command("evaluate") + " " + model + " --val_data " +
                       shell_quote(session.data.validation_from));
  commands.push_back(tool_command("report") + " " + shell_quote(session.place.logs()));
  return commands;
}

} // namespace gpt2
