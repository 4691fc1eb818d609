#include "engine/train/option_notes.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <set>

#include "engine/base/formatted.h"
#include "engine/train/option_fields.h"

namespace gpt2 {
namespace {

// "--a, --b and --c"; empty: none of them was given.
std::string flags_among(const std::set<std::string>& given, std::initializer_list<const char*> names) {
  std::vector<std::string> flags;
  for (const char* const name : names) {
    if (given.contains(name)) flags.push_back(std::string("--") + name);
  }
  std::string out;
  for (size_t i = 0; i < flags.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == flags.size() ? " and " : ", ") + flags[i];
  }
  return out;
}

std::string without_effect(const std::string& flags, const std::string& reason) {
  const bool several = flags.find(" and ") != std::string::npos;
  return flags + (several ? " have" : " has") + " no effect " + reason;
}

std::string rate_text(float rate) {
  char out[32];
  std::snprintf(out, sizeof out, "%.2e", static_cast<double>(rate));
  return out;
}

std::vector<std::string> changed_options(const Options& before, const Options& now) {
  static const std::set<std::string> told_elsewhere{"precision", "use_fp8", "run_name", "checkpoint_dir", "resume"};
  Options old_values = before, new_values = now;
  const std::vector<OptionField> from = option_fields(old_values), to = option_fields(new_values);
  std::vector<std::string> changes;
  for (size_t i = 0; i < from.size(); ++i) {
    const std::string old_value = from[i].toml(), new_value = to[i].toml();
    if (old_value == new_value || told_elsewhere.contains(from[i].name)) continue;
    changes.push_back(from[i].name + " " + old_value + " -> " + new_value);
  }
  return changes;
}

// The first of the steps [begin, end) for which `holds`; `end`: none. Up to kLooks steps are looked at one by one; of
// more, every so many, and where it holds, the steps before by halves: what lasts less than that share of the run may
// go unseen.
template <class Holds>
int64_t first_step(int64_t begin, int64_t end, const Holds& holds) {
  constexpr int64_t kLooks = 100'000; // milliseconds
  const int64_t stride = std::max<int64_t>(0, end - begin - 1) / kLooks + 1;
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

std::vector<std::string> notes_on_options_without_effect(const RunStart& start, const RunPlan& plan, bool gpu,
                                                         bool evaluates) {
  const std::set<std::string>& given = start.given;
  const Options& options = plan.options;
  std::vector<std::string> notes;
  const auto note = [&](const std::string& flags, const std::string& reason) {
    if (!flags.empty()) notes.push_back(without_effect(flags, reason));
  };
  // Where FP8 was asked for and cannot be had, the device's own note says why.
  if (plan.model.precision != Precision::fp8 && options.precision != PrecisionChoice::fp8) {
    note(flags_among(given, {"fp8_format", "fp8_margin", "fp8_interval", "fp8_amax_history", "fp8_lm_head",
                             "fp8_recipe", "fp8_bf16_steps", "fp8_current_steps", "fp8_scenario", "fp8_bf16_layers",
                             "fp8_auto_fallback", "fp8_detail"}),
         "without FP8: --use_fp8 turns it on");
  } else if (plan.model.precision == Precision::fp8 && options.fp8_recipe == Fp8Scaling::current) {
    note(flags_among(given, {"fp8_interval", "fp8_amax_history", "fp8_current_steps"}),
         "under --fp8_recipe current, where a scale remembers nothing");
  }
  if (start.options.batch_size > 0) note(flags_among(given, {"max_batch_size"}), "beside --batch_size");
  if (!options.train_data.empty())
    note(flags_among(given, {"dataset", "data_dir"}), "beside --train_data");
  else if (options.dataset.empty())
    note(flags_among(given, {"data_dir"}), "without --dataset");
  if (options.keep_checkpoints == 0)
    note(flags_among(given, {"keep_every"}), "without --keep_checkpoints: all checkpoints stay");
  if (options.save_best && !evaluates) note(flags_among(given, {"save_best"}), "without evaluation on --val_data");
  if (given.contains("warmup_steps") && plan.schedule.warmup_steps >= plan.max_steps) {
    notes.push_back("--warmup_steps " + std::to_string(plan.schedule.warmup_steps) + " is not over in this run of " +
                    counted(plan.max_steps, "step") + ": the learning rate only climbs, and never decays");
  }
  if (plan.model.precision == Precision::fp8 && plan.model.fp8.bf16_steps >= plan.max_steps) {
    notes.push_back("--fp8_bf16_steps " + std::to_string(plan.model.fp8.bf16_steps) +
                    ": FP8 does not begin in this run of " + counted(plan.max_steps, "step"));
  }
  if (options.lr_schedule != Decay::wsd) note(flags_among(given, {"wsd_decay_ratio"}), "without --lr_schedule wsd");
  if (gpu) {
    note(flags_among(given, {"threads"}), "on a GPU");
  } else {
    note(flags_among(given, {"deterministic", "cuda_graph", "recompute", "attention", "plan_cache"}), "on the CPU");
  }
  return notes;
}

std::vector<std::string> notes_on_resume(const Options& of_checkpoint, const Options& now, int64_t step) {
  std::vector<std::string> notes;
  const std::vector<std::string> changed = changed_options(of_checkpoint, now);
  if (!changed.empty()) notes.push_back("changed since the checkpoint: " + listed(changed));

  // A warm-up that goes on as it was is no surprise.
  const Schedule before = schedule_of(of_checkpoint), after = schedule_of(now);
  const float last = learning_rate(before, step > 0 ? step - 1 : 0);
  const int64_t climb = first_step(step, after.max_steps, [&](int64_t at) {
    const float rate = learning_rate(after, at);
    return rate > last && rate != learning_rate(before, at);
  });
  if (climb < after.max_steps)
    notes.push_back("the learning rate climbs again: " + rate_text(last) + " at the checkpoint, " +
                    rate_text(learning_rate(after, climb)) + " at step " + std::to_string(climb + 1));
  return notes;
}

} // namespace gpt2
