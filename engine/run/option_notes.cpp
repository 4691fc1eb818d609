#include "engine/run/option_notes.h"

#include <algorithm>
#include <set>
#include <thread>

#include "engine/base/formatted.h"
#include "engine/options/option_fields.h"

namespace gpt2 {
namespace {

// "--a, --b and --c have no effect ..."
std::string without_effect(const std::vector<std::string>& names, const std::string& reason) {
  return "--" + listed(names, ", --", " and --") + (names.size() > 1 ? " have" : " has") + " no effect " + reason;
}

// Names of the options for which `belongs` holds, in the order of the help.
template <class Belongs>
std::vector<std::string> options_that(const Belongs& belongs) {
  std::vector<std::string> names;
  for (const OptionField& field : option_fields()) {
    if (belongs(field)) names.push_back(field.name);
  }
  return names;
}

// Options that the user set to something. A file may list every default, as --print_config does, and --no-share_gpu
// requests nothing.
std::set<std::string> requested(const RunSettings& start) {
  std::set<std::string> names;
  for (const OptionField& field : option_fields()) {
    const bool switched_off = field.is_switch() && field.text(start.options) == "false";
    const bool is_default = field.same(start.options, {}) && (!start.typed.contains(field.name) || switched_off);
    if (start.given.contains(field.name) && !is_default) names.insert(field.name);
  }
  return names;
}

std::string rate_text(float rate) { return formatted("%.2e", static_cast<double>(rate)); }

std::vector<std::string> changed_options(const Options& before, const Options& now) {
  static const std::set<std::string> reported_elsewhere{"precision", "use_fp8",        "optimizer",
                                                        "run_name",  "checkpoint_dir", "resume"};
  std::vector<std::string> changes;
  for (const OptionField& field : option_fields()) {
    if (field.same(before, now) || field.not_stored || reported_elsewhere.contains(field.name)) continue;
    changes.push_back(field.name + " " + field.toml(before) + " -> " + field.toml(now));
  }
  return changes;
}

// The first step in [begin, end) for which `holds` is true; `end`: none. Longer ranges are sampled at kSamples steps
// and bisected at the first hit, so a shorter interval may be missed.
template <class Holds>
int64_t first_step(int64_t begin, int64_t end, const Holds& holds) {
  constexpr int64_t kSamples = 100'000; // takes milliseconds
  const int64_t stride = std::max<int64_t>(0, end - begin - 1) / kSamples + 1;
  for (int64_t at = begin - 1; at < end - 1;) {
    int64_t without = at;
    at += std::min(stride, end - 1 - at);
    if (!holds(at)) continue;
    while (at - without > 1) {
      const int64_t middle = without + (at - without) / 2;
      (holds(middle) ? at : without) = middle;
    }
    return at;
  }
  return end;
}

} // namespace

void append_notes(std::vector<std::string>& notes, const std::vector<std::string>& more) {
  notes.insert(notes.end(), more.begin(), more.end());
}

std::vector<std::string> notes_on_options_without_effect(const RunSettings& start, const RunPlan& plan, bool gpu,
                                                         bool evaluates) {
  const std::set<std::string> given = requested(start);
  const Options& options = plan.options;
  const Fp8Options& fp8 = plan.model.fp8;
  const bool uses_fp8 = plan.model.precision == Precision::fp8, resumes = start.resumed.has_value();
  std::vector<std::string> notes;
  const auto idle = [&](bool here, std::vector<std::string> names, const std::string& reason) {
    std::erase_if(names, [&](const std::string& name) { return !given.contains(name); });
    if (here && !names.empty()) notes.push_back(without_effect(names, reason));
  };

  // FP8 requested but unavailable: the device's own note gives the reason.
  idle(!uses_fp8 && options.precision != PrecisionChoice::fp8,
       options_that([](const OptionField& field) { return field.name.starts_with("fp8_"); }),
       "without FP8: --use_fp8 turns it on");
  idle(uses_fp8 && options.fp8_recipe == Fp8ScalingRecipe::current,
       {"fp8_interval", "fp8_amax_history", "fp8_current_steps"}, "with --fp8_recipe current, which keeps no history");
  if (uses_fp8 && fp8.bf16_steps >= plan.max_steps) {
    notes.push_back(concat("--fp8_bf16_steps ", fp8.bf16_steps, ": FP8 does not begin in this run of ",
                           counted(plan.max_steps, "step")));
  }

  idle(start.options.batch_size > 0, {"max_batch_size"}, "with --batch_size");
  idle(!options.train_data.empty(), {"dataset", "data_dir"}, "with --train_data");
  idle(options.train_data.empty() && options.dataset.empty(), {"data_dir"}, "without --dataset");
  idle(options.init_from.empty(), {"hf_cache"}, "without --init_from");
  idle(!resumes, {"allow_other_data"}, "without --resume");
  idle(!options.document_mask, {"document_positions"}, "without --document_mask");

  if (given.contains("warmup_steps") && plan.schedule.warmup_steps >= plan.max_steps) {
    notes.push_back(concat("--warmup_steps ", plan.schedule.warmup_steps, " does not end in this run of ",
                           counted(plan.max_steps, "step"), ": the learning rate only rises, and never decays"));
  }
  idle(options.optimizer != Optimizer::muon,
       {"adamw_lr", "muon_momentum", "muon_momentum_warmup", "muon_cautious_decay"}, "without --optimizer muon");
  idle(resumes || !options.init_from.empty(), {"init_projections"}, "on weights that are loaded");
  idle(options.lr_schedule != Decay::wsd, {"wsd_decay_ratio"}, "without --lr_schedule wsd");
  idle(options.lr_schedule == Decay::constant, {"min_lr_ratio"}, "with --lr_schedule constant");
  idle(options.lr_schedule == Decay::wsd && options.wsd_decay_ratio == 0, {"min_lr_ratio"}, "with --wsd_decay_ratio 0");

  idle(options.save_best && !evaluates, {"save_best"}, "without evaluation on --val_data");
  idle(!plan.wants_evaluation(), {"val_data"}, "with --eval_freq 0");
  idle(!evaluates && !resumes, {"eval_sequences"},
       "without evaluation"); // resumed: it decides whether the best loss still counts
  idle(resumes, {"eval_at_start"}, "with --resume: it evaluates before step 1");
  idle(options.hellaswag_freq == 0, {"hellaswag_data", "hellaswag_tasks"}, "without --hellaswag_freq");
  idle(options.sample_tokens == 0, {"sample_freq", "prompt", "temperature", "top_k", "sample_seed"},
       "with --sample_tokens 0");
  idle(options.sample_tokens > 0 && options.temperature == 0, {"top_k", "sample_seed"},
       "with --temperature 0: the likeliest token is taken");
  idle(options.sample_tokens > 0 && options.temperature > 0 && options.top_k == 1, {"temperature", "sample_seed"},
       "with --top_k 1: the likeliest token is taken");
  idle(!options.use_tensorboard && !options.fp8_detail, {"histogram_freq"}, "without TensorBoard's files");
  idle(options.keep_checkpoints == 0, {"keep_every"}, "with --keep_checkpoints all");

  idle(plan.ranks() == 1, {"zero", "grad_reduce", "nccl_timeout", "log_ranks", "share_gpu", "master"}, "with one rank");
  idle(!gpu, options_that([](const OptionField& field) { return field.group == option_group::kGpu; }), "on the CPU");
  idle(!gpu && plan.ranks() > 1, {"share_gpu"}, "on the CPU");
  idle(gpu, {"threads"}, "on a GPU");
  const int64_t first = (uses_fp8 ? fp8.bf16_steps : 0) + 4; // of the two steps of --timeline
  if (gpu && !resumes && given.contains("timeline") && plan.max_steps < first) {
    notes.push_back(concat("--timeline writes nothing: steps ", first, " and ", first + 1, " are not in this run of ",
                           counted(plan.max_steps, "step")));
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency()); // 0: unknown
  if (!gpu && plan.ranks() == 1 && given.contains("threads") && cores > 0 && options.threads > cores) {
    notes.push_back(concat("--threads ", options.threads, " on ", counted(cores, "core"),
                           ": threads wait for each other; --threads auto takes all cores"));
  }
  return notes;
}

std::vector<std::string> notes_on_flags_without_effect_on_evaluation(const RunSettings& start) {
  namespace group = option_group;
  static const std::set<std::string> of_training{group::kOptimizer, group::kEvaluation, group::kLogs,
                                                 group::kCheckpoints, group::kAnomalies};
  static const std::set<std::string> and_yet{"warmup_steps", "eval_sequences", "run_name", "checkpoint_dir",
                                             "init_from",    "hf_cache",       "resume",   "allow_other_data"};
  const std::vector<std::string> idle = options_that([&](const OptionField& field) {
    return start.typed.contains(field.name) && of_training.contains(field.group) && !and_yet.contains(field.name);
  });
  return idle.empty() ? std::vector<std::string>{} : std::vector{without_effect(idle, "with --eval_only")};
}

std::vector<std::string> notes_on_resume(const Options& of_checkpoint, const Options& now, int64_t step) {
  std::vector<std::string> notes;
  const std::vector<std::string> changed = changed_options(of_checkpoint, now);
  if (!changed.empty()) notes.push_back("changed since the checkpoint: " + listed(changed));

  // A warm-up that continues unchanged needs no note.
  const Schedule before = schedule_of(of_checkpoint), after = schedule_of(now);
  const float last = learning_rate(before, step > 0 ? step - 1 : 0);
  const int64_t climb = first_step(step, after.max_steps, [&](int64_t at) {
    const float rate = learning_rate(after, at);
    return rate > last && rate != learning_rate(before, at);
  });
  if (climb < after.max_steps)
    notes.push_back("the learning rate rises again: " + rate_text(last) + " at the checkpoint, " +
                    rate_text(learning_rate(after, climb)) + " at step " + std::to_string(climb + 1));
  return notes;
}

} // namespace gpt2
