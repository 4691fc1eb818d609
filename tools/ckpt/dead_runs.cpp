#include "tools/ckpt/dead_runs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/base/json_reader.h"
#include "engine/system/folder_lock.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

const std::string kMetrics = "metrics.jsonl";

// A file that a run or a tool writes to a log folder.
bool is_log_file(const std::string& name) {
  return name == kMetrics || name == ".lock" || name == "report.html" || name == "wandb_sync.json" ||
         name.starts_with("events.out.tfevents.") || (name.starts_with("rank_") && name.ends_with(".jsonl"));
}

bool holds_only_logs(const std::string& folder) {
  std::error_code absent;
  bool any = false;
  for (const auto& entry : fs::directory_iterator(folder, absent)) {
    if (!entry.is_regular_file(absent) || !is_log_file(entry.path().filename().string())) return false;
    any = true;
  }
  return any && !absent;
}

// True also for a log that is not ours: PyTorch's event files are in runs/ by default, and 0.1.0 wrote no types.
bool has_stepped(const std::string& folder) {
  std::ifstream metrics(folder + "/" + kMetrics);
  bool ours = false;
  for (std::string line; std::getline(metrics, line);) {
    const auto json = parse_json(line);
    if (!json.is_object()) continue;
    const auto type = json.find("type");
    if (type == json.end() || !type->is_string() || *type == "step") return true;
    ours |= *type == "run";
  }
  return !ours;
}

// A folder of checkpoints without any.
bool is_bare(const std::string& folder) {
  std::error_code absent;
  return std::ranges::all_of(fs::directory_iterator(folder, absent),
                             [](const fs::directory_entry& entry) { return entry.path().filename() == ".lock"; });
}

} // namespace

std::vector<DeadRun> find_dead_runs(const std::string& log_dir, const std::vector<std::string>& checkpoint_dirs) {
  std::vector<DeadRun> dead;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(log_dir, absent)) {
    DeadRun run{.logs = entry.path().string(), .checkpoints = {}};
    if (entry.is_symlink(absent) || !entry.is_directory(absent) || has_writer(run.logs)) continue;
    if (!holds_only_logs(run.logs) || has_stepped(run.logs)) continue;
    for (const std::string& dir : checkpoint_dirs)
      if (const std::string folder = dir + "/" + entry.path().filename().string(); fs::is_directory(folder, absent))
        run.checkpoints.push_back(folder);
    if (std::ranges::all_of(run.checkpoints, is_bare)) dead.push_back(std::move(run));
  }
  std::ranges::sort(dead, {}, &DeadRun::logs);
  return dead;
}

void remove_dead_run(const DeadRun& run) {
  const auto remove = [](const std::string& folder) {
    std::error_code failure;
    fs::remove_all(folder, failure);
    if (failure) throw Error(ExitCode::disk, "cannot remove " + folder + ": " + failure.message());
  };
  const FolderLock alone(run.logs, "--run_name"); // a run locks its log folder first
  if (has_stepped(run.logs) || !std::ranges::all_of(run.checkpoints, is_bare))
    throw Error(ExitCode::usage, "a run has started in " + run.logs, "keep it");
  for (const std::string& folder : run.checkpoints) remove(folder);
  remove(run.logs);
}

} // namespace gpt2
