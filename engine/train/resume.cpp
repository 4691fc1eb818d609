#include "engine/train/resume.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/checkpoint_search.h"
#include "engine/train/run_plan.h"

namespace gpt2 {
namespace {

std::string shape_text(const GPT2Config& config) {
  return std::to_string(config.layers) + " layers, " + std::to_string(config.heads) + " heads, " +
         std::to_string(config.channels) + " channels, sequences of " + std::to_string(config.seq_len);
}

Options options_of(const TrainState& state, const std::string& checkpoint) {
  try {
    return from_toml(state.options_toml, checkpoint + "/options.toml").options;
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

bool is_below(const std::string& path, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path relative =
      fs::weakly_canonical(path, ignored).lexically_relative(fs::weakly_canonical(folder, ignored));
  return !relative.empty() && *relative.begin() != "..";
}

// A loss is one of the checkpoint's own step, or says of which it is. Without a known step it says nothing.
std::string loss_text(const CheckpointInfo& info) {
  if (!(info.val_loss < 1e30) || info.val_step < 0) return "        -";
  char loss[32];
  std::snprintf(loss, sizeof loss, "%9.6f", info.val_loss);
  return info.val_step == info.step ? loss : loss + (" at step " + std::to_string(info.val_step));
}

} // namespace

RunStart prepare_start(const CommandLine& command_line) {
  const Options& asked = command_line.options;
  if (asked.resume.empty()) return {asked, "", std::nullopt, command_line.given, command_line.notes};
  const std::string run = command_line.given.contains("run_name") ? asked.run_name : "";
  const std::string checkpoint = find_checkpoint(asked.checkpoint_dir, run, asked.resume);
  const TrainState state = read_checkpoint(checkpoint);
  const Options of_checkpoint = options_of(state, checkpoint);
  Options merged = merge_for_resume(command_line, of_checkpoint);
  if (merged.run_name.empty()) merged.run_name = state.run_name;
  // Where it was found, not where it was written: the folder may have been moved since.
  const bool elsewhere = !command_line.given.contains("checkpoint_dir") && !is_below(checkpoint, asked.checkpoint_dir);
  merged.checkpoint_dir = elsewhere ? checkpoint_dir_of(checkpoint, state.run_name) : asked.checkpoint_dir;
  check_same_run(merged, of_checkpoint, checkpoint);
  return {merged, checkpoint, of_checkpoint, command_line.given, command_line.notes};
}

std::string describe_checkpoints(const std::string& checkpoint_dir) {
  const auto checkpoints = list_checkpoints(checkpoint_dir);
  if (checkpoints.empty()) return "no checkpoints in " + checkpoint_dir + "\n";
  size_t width = 0;
  int ranks = 1;
  for (const CheckpointInfo& info : checkpoints) {
    width = std::max(width, loss_text(info).size());
    ranks = std::max(ranks, info.ranks);
  }
  std::string out;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const CheckpointInfo& info = checkpoints[i];
    if (i == 0 || info.run != checkpoints[i - 1].run)
      out += (info.run.empty() ? "without a run folder" : "run " + info.run) + "\n";
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
