#include "engine/checkpoint/pruning.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/toml.h"
#include "engine/checkpoint/atomic_folder.h"
#include "engine/checkpoint/format.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/checkpoint/verify.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

bool is_multiple(int64_t step, int64_t of) { return of > 0 && step % of == 0; }

// Fingerprint of the validation data; "": unknown.
std::string validation_of(const std::string& checkpoint) {
  try {
    return checkpoint.empty() ? "" : read_checkpoint(checkpoint).validation;
  } catch (const std::exception&) {
    return "";
  }
}

// From the checkpoint's own state: --save_best saved it, it was not due by --checkpoint_freq and not the last step, and
// its loss was measured on `validation`. False if it cannot be read.
bool was_saved_as_best_only(const std::string& checkpoint, const std::string& validation) {
  try {
    const TrainState state = read_checkpoint(checkpoint);
    std::map<std::string, std::string> options;
    for (const TomlLine& line : read_toml(state.options_toml, "options.toml")) options.emplace(line.key, line.value);
    const bool comparable = state.validation.empty() || validation.empty() || state.validation == validation;
    return comparable && state.last_val_step == state.step && state.last_val_loss == state.best_val_loss &&
           options.at("save_best") == "true" && state.step != std::stoll(options.at("max_steps")) &&
           !is_multiple(state.step, std::stoll(options.at("checkpoint_freq")));
  } catch (const std::exception&) {
    return false;
  }
}

} // namespace

std::vector<int64_t> steps_to_remove(const std::vector<KeptStep>& steps, const KeepRule& rule) {
  std::vector<int64_t> unwanted;
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    const KeptStep& step = steps[i];
    const bool among_newest = rule.newest == 0 || i + static_cast<size_t>(rule.newest) >= steps.size();
    if (!step.marked && step.step != rule.before_cooldown && !is_multiple(step.step, rule.every) &&
        (step.only_best || !among_newest))
      unwanted.push_back(step.step);
  }
  return unwanted;
}

Pruned prune(const std::string& run_folder, const KeepRule& rule, bool dry_run) {
  Pruned pruned;
  std::vector<KeptStep> steps; // opens only checkpoints that may have been saved as best only
  const std::string best_path = follow_marker(run_folder, kBest), validation = validation_of(best_path);
  const int64_t latest = step_of(follow_marker(run_folder, kLatest)), best = step_of(best_path);
  for (const std::string& path : checkpoints_in(run_folder)) {
    const int64_t step = step_of(path);
    const bool may_be_former_best = step != latest && step < best && !is_multiple(step, rule.due_every);
    steps.push_back({.step = step,
                     .marked = step == latest || step == best,
                     .only_best = may_be_former_best && was_saved_as_best_only(path, validation)});
  }
  const std::vector<int64_t> unwanted = steps_to_remove(steps, rule);
  if (unwanted.empty()) return pruned;
  const std::string newest = run_folder + "/" + step_folder_name(steps.back().step);
  if (const std::string reason = why_invalid(newest); !reason.empty()) {
    pruned.why_not = "no old checkpoint is removed while the newest one is not valid: " + reason;
    return pruned;
  }
  for (const int64_t step : unwanted) {
    const std::string path = run_folder + "/" + step_folder_name(step), temporary = temporary_name(path);
    if (!dry_run && !renamed(path, temporary)) {
      pruned.why_not = "cannot remove " + path + ": " + std::strerror(errno);
      continue;
    }
    pruned.removed.push_back(path);
    std::error_code ignored; // the next save removes the rest by its temporary name
    if (!dry_run) fs::remove_all(temporary, ignored);
  }
  return pruned;
}

std::string disk_space_warning(const std::string& run_folder, int64_t bytes, int64_t free_bytes) {
  if (free_bytes >= bytes) return "";
  const auto text = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  return "the next checkpoint in " + run_folder + " needs " + text(bytes) + ", and " + text(free_bytes) +
         " are free: " + text(bytes - free_bytes) +
         " are missing (free some disk space; --keep_checkpoints N keeps fewer)";
}

} // namespace gpt2
