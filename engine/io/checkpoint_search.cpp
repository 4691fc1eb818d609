#include "engine/io/checkpoint_search.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "engine/base/error.h"
#include "engine/io/checkpoint_names.h"
#include "engine/io/checkpoint_verify.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

const std::string kDamaged = "damaged"; // in place of the precision, in a list

// ---- what is there ----

int64_t size_of_files(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(folder, gone)) bytes += static_cast<int64_t>(entry.file_size(gone));
  return bytes;
}

CheckpointInfo describe(const std::string& path) {
  CheckpointInfo info;
  info.path = path;
  info.step = step_of(path);
  info.bytes = size_of_files(path);
  try {
    const StateHeader header = read_state_header(path);
    info.val_loss = header.val_loss;
    info.val_step = header.val_step;
    info.ranks = header.ranks;
    info.written = header.written;
    info.precision = header.precision;
  } catch (const Error&) { // shown, so that nobody wonders where it went
    info.val_loss = 1e30;
    info.precision = kDamaged;
  }
  return info;
}

// The folder's own checkpoints, unread: by step.
std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code absent; // no folder: no checkpoints
  for (const auto& entry : fs::directory_iterator(folder, absent)) {
    const std::string path = folder + "/" + entry.path().filename().string();
    if (step_of(path) >= 0 && is_complete(path)) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end(), [](const auto& a, const auto& b) { return step_of(a) < step_of(b); });
  return paths;
}

// Names of the runs in a --checkpoint_dir: "" for checkpoints that stand there directly. A name may be a path
// (--run_name sweep/lr3); three levels of it are looked at, because the folder may be any, as "." is.
std::vector<std::string> runs_in(const std::string& root) {
  constexpr int kDeepest = 2;
  std::vector<std::string> runs;
  if (!checkpoints_in(root).empty()) runs.emplace_back();
  std::error_code unreadable;
  auto entry = fs::recursive_directory_iterator(root, fs::directory_options::skip_permission_denied, unreadable);
  for (; !unreadable && entry != fs::recursive_directory_iterator(); entry.increment(unreadable)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || step_of(name) >= 0 || entry.depth() == kDeepest) entry.disable_recursion_pending();
    if (name.starts_with('.') || step_of(name) >= 0 || !entry->is_directory(unreadable)) continue;
    if (!checkpoints_in(entry->path().string()).empty())
      runs.push_back(entry->path().lexically_relative(root).string());
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

std::string run_folder(const std::string& root, const std::string& run) {
  return run.empty() ? root : root + "/" + run;
}

auto age(const CheckpointInfo& info) {
  return std::tie(info.written, info.step);
} // steps of one second by their number

bool is_damaged(const CheckpointInfo& info) { return info.precision == kDamaged; }

// ---- which one is meant ----

std::string what_is_there(const std::string& folder, std::vector<CheckpointInfo> checkpoints) {
  std::erase_if(checkpoints, is_damaged);
  if (checkpoints.empty()) return "start a new run without --resume, or check --checkpoint_dir and --run_name";
  constexpr size_t kShown = 8;
  std::string steps = checkpoints.size() > kShown ? "... " : "";
  const size_t first = checkpoints.size() > kShown ? checkpoints.size() - kShown : 0;
  for (size_t i = first; i < checkpoints.size(); ++i) {
    const CheckpointInfo& info = checkpoints[i];
    steps += (i > first ? ", " : "") + (info.run.empty() ? std::to_string(info.step) : info.path);
  }
  return "choose one of the checkpoints in " + folder + ": " + steps;
}

[[noreturn]] void throw_not_there(const std::string& what, const std::string& folder) {
  throw Error(ExitCode::checkpoint, what, what_is_there(folder, list_checkpoints(folder)));
}

// In a run's folder or in a --checkpoint_dir: what its marker says; where that leads nowhere, the newest by time.
std::string find_marked(const std::string& folder, const std::string& marker) {
  if (const std::string path = follow_marker(folder, marker); !path.empty()) return path;
  std::vector<CheckpointInfo> candidates = list_checkpoints(folder);
  std::erase_if(candidates,
                [&](const CheckpointInfo& info) { return is_damaged(info) || (marker == kBest && !info.best); });
  if (!candidates.empty()) {
    const auto older = [](const CheckpointInfo& a, const CheckpointInfo& b) { return age(a) < age(b); };
    return std::max_element(candidates.begin(), candidates.end(), older)->path;
  }
  throw_not_there(
      marker == kBest ? "no checkpoint in " + folder + " is marked as best" : "there is no checkpoint in " + folder,
      folder);
}

// Of one run, or of the run that saved last; where nothing tells which that was, of the only one that has this step.
std::string find_step(const std::string& root, const std::string& run, int64_t step) {
  const std::string name = step_folder_name(step);
  const std::string latest = run.empty() ? follow_marker(root, kLatest) : "";
  const std::string folder = !run.empty() ? run_folder(root, run) : fs::path(latest).parent_path().string();
  if (!folder.empty() && is_complete(folder + "/" + name)) return folder + "/" + name;
  std::vector<std::string> candidates;
  for (const std::string& other : runs_in(root)) {
    const std::string path = run_folder(root, other) + "/" + name;
    if (is_complete(path)) candidates.push_back(path);
  }
  if (folder.empty() && candidates.size() == 1) return candidates.front();
  if (candidates.empty())
    throw_not_there(
        "there is no checkpoint of step " + std::to_string(step) + " in " + (folder.empty() ? root : folder),
        folder.empty() ? root : folder);
  std::string list;
  for (const std::string& path : candidates) list += (list.empty() ? "" : ", ") + path;
  throw Error(ExitCode::checkpoint,
              folder.empty() ? "several runs in " + root + " have a checkpoint of step " + std::to_string(step)
                             : "there is no checkpoint of step " + std::to_string(step) + " in " + folder,
              "give --resume a path, or --run_name; this step is there: " + list);
}

// A checkpoint, its state file, a run's folder, a --checkpoint_dir, or the marker in one of these; "": none.
std::string find_at(const std::string& path) {
  if (is_complete(path)) return path;
  const fs::path parent = fs::path(path).parent_path();
  const std::string name = fs::path(path).filename().string(), folder = parent.empty() ? "." : parent.string();
  if (name == "state.h5" && is_complete(folder)) return folder;
  if ((name == kLatest || name == kBest) && !runs_in(folder).empty()) return find_marked(folder, name);
  return !path.empty() && !runs_in(path).empty() ? find_marked(path, kLatest) : "";
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// ---- reading one ----

// An Error without a hint is about a damaged file: the newest older one beside it that is valid goes with it.
template <class Read>
TrainState with_hint(const std::string& checkpoint, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (!error.hint().empty() || error.code() != ExitCode::checkpoint) throw;
    const std::string what = error.what(), where = what.find(checkpoint) == std::string::npos ? checkpoint + ": " : "";
    throw Error(error.code(), where + what, hint_if_damaged(checkpoint));
  }
}

} // namespace

std::vector<CheckpointInfo> list_run(const std::string& folder) {
  const std::string latest = follow_marker(folder, kLatest), best = follow_marker(folder, kBest);
  std::vector<CheckpointInfo> checkpoints;
  for (const std::string& path : checkpoints_in(folder)) {
    checkpoints.push_back(describe(path));
    checkpoints.back().latest = path == latest;
    checkpoints.back().best = path == best;
  }
  return checkpoints;
}

std::vector<CheckpointInfo> list_checkpoints(const std::string& checkpoint_dir) {
  const std::string root = without_slashes(checkpoint_dir);
  std::vector<std::vector<CheckpointInfo>> runs;
  for (const std::string& run : runs_in(root)) {
    runs.push_back(list_run(run_folder(root, run)));
    for (CheckpointInfo& info : runs.back()) info.run = run;
  }
  const auto newest = [](const std::vector<CheckpointInfo>& run) {
    std::string written;
    for (const CheckpointInfo& info : run) written = std::max(written, info.written);
    return written;
  };
  std::stable_sort(runs.begin(), runs.end(), [&](const auto& a, const auto& b) { return newest(a) < newest(b); });
  std::vector<CheckpointInfo> all;
  for (const std::vector<CheckpointInfo>& run : runs) all.insert(all.end(), run.begin(), run.end());
  return all;
}

std::string find_checkpoint(const std::string& checkpoint_dir, const std::string& run, const std::string& which) {
  const std::string root = without_slashes(checkpoint_dir), path = without_slashes(which);
  if (which == kLatest || which == kBest) return find_marked(run_folder(root, run), which);
  if (is_number(which)) return find_step(root, run, std::strtoll(which.c_str(), nullptr, 10));
  if (!path.empty()) {
    for (const std::string& place : {path, run_folder(root, run) + "/" + path, root + "/" + path}) {
      if (const std::string found = find_at(place); !found.empty()) return found;
    }
  }
  throw_not_there("there is no checkpoint at \"" + which + "\"", root);
}

std::string checkpoint_dir_of(const std::string& checkpoint, const std::string& run) {
  fs::path folder = fs::absolute(checkpoint).lexically_normal().parent_path();
  const fs::path name(run);
  const auto depth = std::distance(name.begin(), name.end());
  fs::path above = folder;
  for (auto level = 0; level < depth; ++level) above = above.parent_path();
  return (folder.lexically_relative(above) == name ? above : folder).string();
}

TrainState load_checkpoint(const std::string& checkpoint, StatefulModel& model) {
  return with_hint(checkpoint, [&] { return load_state(checkpoint, model); });
}

TrainState read_checkpoint(const std::string& checkpoint) {
  return with_hint(checkpoint, [&] { return read_train_state(checkpoint); });
}

} // namespace gpt2
