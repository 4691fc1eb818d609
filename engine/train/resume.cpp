#include "engine/train/resume.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/checkpoint_names.h"
#include "engine/io/checkpoint_search.h"
#include "engine/io/checkpoint_verify.h"
#include "engine/train/init_from.h"
#include "engine/train/report.h"
#include "engine/train/run_plan.h"

namespace gpt2 {
namespace {

Options options_of(const TrainState& state, const std::string& checkpoint) {
  try {
    CommandLine saved = from_toml(state.options_toml, checkpoint + "/options.toml");
    Options& options = saved.options;
    if (!saved.given.contains("fp8_bf16_steps")) // an older run, whose FP8 began with step 1
      options.fp8_bf16_steps = state.precision == to_string(Precision::fp8)
                                   ? 0
                                   : automatic_bf16_steps(options.warmup_steps, options.max_steps);
    return options;
  } catch (const Error& error) { // not the user's typing: another version wrote it
    throw Error(ExitCode::checkpoint, std::string("cannot read the options of a checkpoint: ") + error.what(),
                "resume it with the version that wrote it");
  }
}

void check_same_run(const Options& merged, const Options& of_checkpoint, const std::string& checkpoint) {
  const std::string asked = shape_text(resolve_config(merged, false));
  const std::string there = shape_text(resolve_config(of_checkpoint, false));
  if (asked != there) {
    throw Error(ExitCode::checkpoint, checkpoint + " holds a model of " + there + ", but the flags ask for " + asked,
                "leave out the flags of the shape, or start a new run without --resume");
  }
  if (merged.seed != of_checkpoint.seed) {
    throw Error(ExitCode::checkpoint,
                checkpoint + " was trained with --seed " + std::to_string(of_checkpoint.seed) + ", not " +
                    std::to_string(merged.seed),
                "leave out --seed");
  }
}

// ---- where a run goes on ----

namespace fs = std::filesystem;

fs::path canonical(const std::string& path) {
  std::error_code ignored;
  return fs::weakly_canonical(path, ignored);
}

std::string folder_of(const std::string& checkpoint) { return fs::absolute(checkpoint).parent_path().string(); }

// Is there something in the folder that going on from `step` would replace, sooner or later? The newest is the
// likeliest to be valid, and one is enough.
bool has_later(const std::string& folder, int64_t step) {
  const std::vector<CheckpointInfo> all = list_run(folder);
  return std::any_of(all.rbegin(), all.rend(),
                     [&](const auto& info) { return info.step > step && why_invalid(info.path).empty(); });
}

// A run's folder and its name in it. Where it was found, not where it was written: folders are moved and copied.
struct Place {
  std::string checkpoint_dir, run_name;
  bool own_logs; // those of this name are the run's own: a copy beside its run has the same name
};

Place place_of(const std::string& checkpoint, const std::string& run_name, const std::vector<std::string>& dirs) {
  const std::string folder = folder_of(checkpoint);
  for (const std::string& dir : dirs) {
    const fs::path below = canonical(folder).lexically_relative(canonical(dir));
    if (below == ".") return {dir, run_name, true}; // it stands there directly, as version 0.1 wrote them
    if (!below.empty() && *below.begin() != "..") return {dir, below.string(), true};
  }
  const std::string dir = checkpoint_dir_of(checkpoint, run_name);
  return {dir, run_name, canonical(dir + "/" + run_name) == canonical(folder)};
}

// Sets the folder and the name of the resumed run.
void settle(Options& merged, std::vector<std::string>& notes, const CommandLine& line, const std::string& checkpoint,
            const TrainState& state, Optimizer optimizer_before) {
  const bool other_optimizer = merged.optimizer != optimizer_before;
  if (other_optimizer)
    notes.push_back("trained with --optimizer " + name_of(optimizer_before) + " so far, " + name_of(merged.optimizer) +
                    " from here on: its moments start at zero");
  const Place place = place_of(checkpoint, state.run_name, checkpoint_dirs(line.options));
  const bool named = line.given.contains("run_name") && !line.options.run_name.empty();
  const bool elsewhere = line.given.contains("checkpoint_dir");
  merged.checkpoint_dir = elsewhere ? line.options.checkpoint_dir : place.checkpoint_dir;
  if (!named) merged.run_name = place.run_name;
  const std::string found = folder_of(checkpoint), wanted = merged.checkpoint_dir + "/" + merged.run_name;
  if (named && canonical(found) != canonical(wanted)) return refuse_taken_name(wanted); // a branch that has its name
  const bool later = has_later(found, state.step) || has_later(wanted, state.step);
  if (!later && !other_optimizer &&
      (place.own_logs || elsewhere || !fs::exists(merged.log_dir + "/" + merged.run_name)))
    return;
  const std::string name =
      free_run_name(merged.run_name + "-from-" + std::to_string(state.step), merged.checkpoint_dir, merged.log_dir);
  if (!line.options.eval_only)
    notes.push_back((later             ? "there are later checkpoints of " + merged.run_name + " than step "
                     : other_optimizer ? "another optimizer than that of " + merged.run_name + " after step "
                                       : "the logs of " + merged.run_name + " go on elsewhere after step ") +
                    std::to_string(state.step) + ": this run branches off as " + name + ", and leaves " +
                    merged.run_name + " as it is");
  merged.run_name = name;
}

// ---- a list of checkpoints ----

// A loss is one of the checkpoint's own step, or says of which it is. Without a known step it says nothing.
std::string loss_text(const CheckpointInfo& info) {
  if (!(info.val_loss < kNoLoss) || info.val_step < 0) return "        -";
  char loss[32];
  std::snprintf(loss, sizeof loss, "%9.6f", info.val_loss);
  return info.val_step == info.step ? loss : loss + (" at step " + std::to_string(info.val_step));
}

std::string model_text(const CheckpointInfo& info) { return info.is_damaged() ? "" : " | " + info.model; }

RunStart new_run(const CommandLine& line) {
  RunStart start{
      .options = line.options, .checkpoint = "", .given = line.given, .typed = line.typed, .notes = line.notes};
  start.weights = open_initial_weights(start.options);
  if (start.weights)
    start.notes.insert(start.notes.end(), start.weights->notes().begin(), start.weights->notes().end());
  return start;
}

} // namespace

RunStart prepare_start(const CommandLine& command_line) {
  const Options& asked = command_line.options;
  if (asked.resume.empty()) return new_run(command_line);
  const std::string run = command_line.given.contains("run_name") ? asked.run_name : "";
  const std::string checkpoint = find_checkpoint(checkpoint_dirs(asked), run, asked.resume);
  const TrainState state = read_checkpoint(checkpoint);
  const Options of_checkpoint = options_of(state, checkpoint);
  Options merged = merge_for_resume(command_line, of_checkpoint);
  check_same_run(merged, of_checkpoint, checkpoint);
  std::vector<std::string> notes = command_line.notes;
  settle(merged, notes, command_line, checkpoint, state, of_checkpoint.optimizer);
  if (command_line.given.contains("init_from") && !asked.init_from.empty())
    notes.push_back("--init_from has no effect: the run goes on with the weights of its checkpoint");
  return {merged, checkpoint, state.precision, of_checkpoint, command_line.given, command_line.typed, notes};
}

std::vector<std::string> checkpoint_dirs(const Options& options) {
  if (options.checkpoint_dir.empty()) return default_checkpoint_dirs();
  return {options.checkpoint_dir};
}

std::string free_run_name(const std::string& name, const std::string& checkpoint_dir, const std::string& log_dir) {
  std::string free = name;
  for (int count = 2; fs::exists(checkpoint_dir + "/" + free) || fs::exists(log_dir + "/" + free); ++count)
    free = name + "-" + std::to_string(count);
  return free;
}

void refuse_taken_name(const std::string& run_folder) {
  const std::vector<CheckpointInfo> there = list_run(run_folder);
  if (there.empty()) return;
  throw Error(ExitCode::usage,
              run_folder + " holds the checkpoints of an earlier run of this name, up to step " +
                  std::to_string(there.back().step),
              "give another --run_name, or go on with that run: " + resume_command(run_folder));
}

std::string describe_checkpoints(const std::vector<std::string>& checkpoint_dirs) {
  const auto checkpoints = list_checkpoints(checkpoint_dirs);
  if (checkpoints.empty()) {
    std::string dirs;
    for (const std::string& dir : checkpoint_dirs) dirs += (dirs.empty() ? "" : " or ") + dir;
    return "no checkpoints in " + dirs + "\n";
  }
  size_t width = 0;
  int ranks = 1;
  for (const CheckpointInfo& info : checkpoints) {
    width = std::max(width, loss_text(info).size());
    ranks = std::max(ranks, info.ranks);
  }
  std::string out;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const CheckpointInfo& info = checkpoints[i];
    if (i == 0 || folder_of(info.path) != folder_of(checkpoints[i - 1].path))
      out += (info.run.empty() ? "without a run folder" : "run " + info.run) + model_text(info) + "\n";
    char line[256], written_by[32] = "";
    if (ranks > 1) std::snprintf(written_by, sizeof written_by, " | ranks %5d", info.ranks);
    std::snprintf(line, sizeof line, "step %8lld | val loss %-*s | %-4s%s | %9s | %s",
                  static_cast<long long>(info.step), static_cast<int>(width), loss_text(info).c_str(),
                  info.precision.c_str(), written_by, format_bytes(static_cast<double>(info.bytes)).c_str(),
                  info.written.c_str());
    out +=
        std::string(line) + " | " + info.path + (info.latest ? " (latest)" : "") + (info.best ? " (best)" : "") + "\n";
  }
  return out;
}

} // namespace gpt2
