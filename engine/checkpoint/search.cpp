#include "engine/checkpoint/search.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/checkpoint/atomic_folder.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/verify.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

// ---- listing ----

CheckpointInfo describe(const std::string& path) {
  CheckpointInfo info;
  try {
    info = {read_summary(path)};
  } catch (const Error&) { // listed as damaged, not left out
    info.val_loss = kNoLoss;
    info.precision = "damaged";
  }
  info.path = path;
  info.step = step_of(path);
  return info;
}

// Folders named step_N in order of steps, complete or not.
std::vector<std::string> step_folders(const std::string& folder) {
  const auto scan = [&](bool& set_aside) {
    std::vector<std::string> paths;
    std::error_code absent; // no folder: no checkpoints
    for (const auto& entry : fs::directory_iterator(folder, absent)) {
      const std::string name = entry.path().filename().string();
      set_aside = set_aside || name.find(".old-") != std::string::npos;
      if (step_of(name) >= 0) paths.push_back(folder + "/" + name);
    }
    return paths;
  };
  bool set_aside = false;
  std::vector<std::string> paths = scan(set_aside);
  if (set_aside) {
    restore_set_aside(folder);
    paths = scan(set_aside);
  }
  std::ranges::sort(paths, {}, step_of);
  return paths;
}

bool has_checkpoints(const std::string& folder) { return !latest_in(folder).empty(); }

// Restores it first if a kill left it under its .old-PID name.
bool is_there(const std::string& checkpoint) {
  if (step_of(checkpoint) >= 0 && !is_complete(checkpoint))
    restore_set_aside(fs::path(checkpoint).parent_path().string());
  return is_complete(checkpoint);
}

using Folders = std::vector<std::string>;

// The runs in a --checkpoint_dir: `root` for checkpoints directly in it, ROOT/RUN for others. A run's name may be a
// path
// (--run_name sweep/lr3). Three levels are searched: the folder may be any, even ".".
Folders runs_in(const std::string& root) {
  constexpr int kDeepest = 2;
  Folders runs;
  if (has_checkpoints(root)) runs.push_back(root);
  std::error_code unreadable;
  auto entry = fs::recursive_directory_iterator(root, fs::directory_options::skip_permission_denied, unreadable);
  for (; !unreadable && entry != fs::recursive_directory_iterator(); entry.increment(unreadable)) {
    const std::string name = entry->path().filename().string();
    const bool is_run_name = !name.starts_with('.') && step_of(name) < 0;
    if (!is_run_name || entry.depth() == kDeepest) entry.disable_recursion_pending();
    if (is_run_name && entry->is_directory(unreadable) && has_checkpoints(entry->path().string()))
      runs.push_back(root + "/" + entry->path().lexically_relative(root).string());
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

std::string run_folder(const std::string& root, const std::string& run) {
  return run.empty() ? root : root + "/" + run;
}

// Across runs, by time, then step. Within a run the step alone decides: a clock may have been set back.
bool is_older(const CheckpointInfo& a, const CheckpointInfo& b) {
  return std::tie(a.written, a.step) < std::tie(b.written, b.step);
}

std::string newest_of(const std::vector<std::string>& checkpoints) { // of different runs; "" if empty
  if (checkpoints.size() == 1) return checkpoints.front();
  std::vector<CheckpointInfo> infos;
  for (const std::string& path : checkpoints) {
    CheckpointInfo info = describe(path);
    if (info.is_damaged()) { // the time of the newest one that can be read, which is near the last save of the run
      for (const std::string& other : others_of_run(path))
        if (info.written = describe(other).written; !info.is_damaged()) break;
    }
    infos.push_back(std::move(info));
  }
  const auto newest = std::max_element(infos.begin(), infos.end(), is_older);
  return newest == infos.end() ? "" : newest->path;
}

// ---- what --resume names ----

// What `find` returns for each of these folders, without "".
std::vector<std::string> find_in(const Folders& folders, const auto& find) {
  std::vector<std::string> found;
  for (const std::string& folder : folders) found.push_back(find(folder));
  std::erase(found, "");
  return found;
}

// "... c, d, e" if there are many.
std::string last_of(std::vector<std::string> names) {
  constexpr size_t kShown = 8;
  if (names.size() <= kShown) return listed(names);
  names.erase(names.begin(), names.end() - kShown);
  return "... " + listed(names);
}

[[noreturn]] void throw_not_there(const std::string& what, const Folders& folders, const std::string& if_none) {
  std::vector<std::string> valid;
  for (const CheckpointInfo& info : list_checkpoints(folders))
    if (!info.is_damaged()) valid.push_back(info.path);
  throw Error(ExitCode::checkpoint, what, valid.empty() ? if_none : "take one of these: " + last_of(valid));
}

// The newest checkpoint of the run that the marker `latest` of a run folder or --checkpoint_dir names.
std::string latest_by_marker(const std::string& folder) {
  const std::string marked = follow_marker(folder, kLatest);
  return marked.empty() ? "" : latest_in(fs::path(marked).parent_path().string());
}

// The newest by time if no marker is valid.
std::string find_latest(const Folders& folders) {
  std::vector<std::string> candidates;
  for (const std::string& folder : folders) {
    std::vector<std::string> latest = find_in({folder}, latest_by_marker);
    if (latest.empty()) latest = find_in(runs_in(folder), latest_in);
    candidates.insert(candidates.end(), latest.begin(), latest.end());
  }
  return newest_of(candidates);
}

// The best checkpoint of each run. A folder that holds checkpoints is a run, even if other runs are below it.
std::vector<std::string> marked_as_best(const std::string& folder) {
  if (const std::string own = follow_marker(folder, kBest); !own.empty() && has_checkpoints(folder)) return {own};
  return find_in(runs_in(folder), [](const std::string& run) { return follow_marker(run, kBest); });
}

// The lowest validation loss of all runs; the newest of equals.
std::string find_best(const Folders& folders) {
  std::vector<CheckpointInfo> marked;
  for (const std::string& folder : folders) {
    for (const std::string& path : marked_as_best(folder)) marked.push_back(describe(path));
  }
  if (marked.size() > 1) std::erase_if(marked, [](const CheckpointInfo& info) { return info.is_damaged(); });
  const auto best = std::ranges::min_element(marked, [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return a.val_loss != b.val_loss ? a.val_loss < b.val_loss : is_older(b, a);
  });
  return best == marked.end() ? "" : best->path;
}

std::string find_marked(const Folders& folders, const std::string& marker) {
  return marker == kBest ? find_best(folders) : find_latest(folders);
}

// "RUN/5000" or "RUN/step_00005000" of a run without that step: the hint lists the run's steps.
void refuse_missing_step(const std::string& run_folder, const std::string& step) {
  if (!is_number(step)) return;
  std::vector<std::string> steps;
  for (const std::string& path : checkpoints_in(run_folder)) steps.push_back(std::to_string(step_of(path)));
  if (steps.empty()) return;
  throw Error(ExitCode::checkpoint, "there is no checkpoint of step " + step + " in " + run_folder,
              "take one of its steps: " + last_of(steps));
}

int64_t to_step(const std::string& digits) { return std::strtoll(digits.c_str(), nullptr, 10); }

// Of the run that saved last; without a marker, of the only run that has this step.
std::string find_step(const Folders& roots, const std::string& run, const std::string& step,
                      const std::string& if_none) {
  const std::string name = step_folder_name(to_step(step));
  const auto of_run = [&](const std::string& folder) {
    const std::string path = folder + "/" + name;
    return is_there(path) ? path : "";
  };
  Folders run_folders, runs;
  for (const std::string& root : roots) {
    const Folders here = runs_in(root);
    runs.insert(runs.end(), here.begin(), here.end());
    run_folders.push_back(run_folder(root, run));
  }
  const std::string newest = newest_of(find_in(run_folders, latest_by_marker));
  if (!newest.empty()) run_folders = {fs::path(newest).parent_path().string()};
  if (const auto found = find_in(run_folders, of_run); !found.empty()) return found.front();
  if (!run.empty()) {
    for (const std::string& folder : run_folders) refuse_missing_step(folder, step);
  }
  const std::vector<std::string> candidates = find_in(runs, of_run);
  const bool any_run = run.empty() && newest.empty();
  if (any_run && candidates.size() == 1) return candidates.front();
  const std::string missing = "there is no checkpoint of step " + step + " in " + listed(run_folders, ", ", " or ");
  if (candidates.empty()) throw_not_there(missing, run_folders, if_none);
  throw Error(
      ExitCode::checkpoint,
      any_run ? "several runs in " + listed(roots, ", ", " and ") + " have a checkpoint of step " + step : missing,
      "name one by its path: " + listed(candidates));
}

// Normalized, so that "step_00000010/." and "." inside that folder name the checkpoint.
std::string plain_path(const std::string& path) {
  const std::string plain = without_slashes(fs::path(path).lexically_normal().string());
  const std::string name = fs::path(plain).filename().string();
  std::error_code ignored;
  return name == "." || name == ".." ? fs::weakly_canonical(plain, ignored).string() : plain;
}

// `path`: a checkpoint, its state.h5, RUN/STEP, a run's folder, a --checkpoint_dir, or a marker in one; "" if none.
std::string find_at(const std::string& path) {
  if (is_there(path)) return path;
  const fs::path parent = fs::path(path).parent_path();
  const std::string name = fs::path(path).filename().string(), folder = parent.empty() ? "." : parent.string();
  if (name == "state.h5" && is_there(folder)) return folder;
  if ((name == kLatest || name == kBest) && !runs_in(folder).empty()) return find_marked({folder}, name);
  if (const std::string step = folder + "/" + step_folder_name(to_step(name)); is_number(name) && is_there(step))
    return step;
  return !path.empty() && !runs_in(path).empty() ? find_latest({path}) : "";
}

// ---- reading ----

// An Error without a hint means damage: adds the newest valid older checkpoint as the hint.
TrainState with_hint(const std::string& checkpoint, const auto& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() == ExitCode::checkpoint && !is_complete(checkpoint)) throw removed_meanwhile(checkpoint);
    if (!error.hint().empty() || error.code() != ExitCode::checkpoint) throw;
    const std::string what = error.what(), where = what.find(checkpoint) == std::string::npos ? checkpoint + ": " : "";
    throw Error(error.code(), where + what, hint_if_damaged(checkpoint));
  }
}

} // namespace

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> paths = step_folders(folder);
  std::erase_if(paths, [](const std::string& path) { return !is_complete(path); });
  return paths;
}

std::vector<CheckpointInfo> list_run(const std::string& folder) {
  const std::string latest = latest_in(folder), best = follow_marker(folder, kBest);
  std::vector<CheckpointInfo> checkpoints;
  for (const std::string& path : checkpoints_in(folder)) {
    CheckpointInfo info = describe(path);
    info.bytes = bytes_of(path);
    info.latest = path == latest;
    info.best = path == best;
    if (!info.is_damaged() || is_complete(path)) checkpoints.push_back(std::move(info)); // else pruned meanwhile
  }
  return checkpoints;
}

std::vector<CheckpointInfo> list_checkpoints(const std::vector<std::string>& checkpoint_dirs) {
  std::vector<std::vector<CheckpointInfo>> runs;
  for (const std::string& checkpoint_dir : checkpoint_dirs) {
    const std::string root = without_slashes(checkpoint_dir);
    for (const std::string& run : runs_in(root)) {
      runs.push_back(list_run(run));
      for (CheckpointInfo& info : runs.back()) info.run = run == root ? "" : run.substr(root.size() + 1);
    }
  }
  std::erase_if(runs, [](const auto& run) { return run.empty(); }); // pruned meanwhile
  const auto last_save = [](const auto& run) {                      // the highest step of a run that can be read
    const auto found = std::find_if(run.rbegin(), run.rend(), [](const auto& info) { return !info.is_damaged(); });
    return found == run.rend() ? run.back() : *found;
  };
  std::stable_sort(runs.begin(), runs.end(),
                   [&](const auto& a, const auto& b) { return is_older(last_save(a), last_save(b)); });
  std::vector<CheckpointInfo> all;
  for (const std::vector<CheckpointInfo>& run : runs) all.insert(all.end(), run.begin(), run.end());
  return all;
}

// Damaged or not: the caller verifies it, and takes an older one if it is damaged.
std::string latest_in(const std::string& folder) {
  const std::vector<std::string> paths = step_folders(folder);
  const auto newest = std::find_if(paths.rbegin(), paths.rend(), is_complete);
  return newest == paths.rend() ? "" : *newest;
}

std::string marker_of_file(const std::string& which) {
  const fs::path path = fs::path(which).lexically_normal();
  const std::string name = path.filename().string();
  const bool best = name == "best.pt" || name == "best_model.pt";
  if (!best && name != "latest.pt" && name != "last.pt" && name != "last.ckpt") return which;
  const std::string marker = best ? kBest : kLatest;
  std::error_code absent;
  const fs::path folder = path.parent_path();
  return folder.empty() || (folder == "checkpoints" && !fs::exists(folder, absent)) ? marker
                                                                                    : (folder / marker).string();
}

std::string find_checkpoint(const std::vector<std::string>& checkpoint_dirs, const std::string& run,
                            const std::string& which, const std::string& if_none) {
  const std::string name = marker_of_file(which);
  Folders roots, run_folders;
  for (const std::string& dir : checkpoint_dirs) {
    roots.push_back(without_slashes(dir));
    run_folders.push_back(run_folder(roots.back(), run));
  }
  if (is_number(name)) return find_step(roots, run, name, if_none);
  if (name == kLatest || name == kBest) {
    if (const std::string found = find_marked(run_folders, name); !found.empty()) return found;
    const std::string where = " in " + listed(run_folders, ", ", " or ");
    throw_not_there(name == kBest ? "no checkpoint" + where + " is marked as best" : "there is no checkpoint" + where,
                    run_folders, if_none);
  }
  if (const std::string path = plain_path(name); !path.empty()) {
    const Folders itself(1);
    const std::array<const Folders*, 3> places = {&itself, &run_folders, &roots};
    for (const Folders* folders : places) {
      const auto below = [&](const std::string& folder) { return find_at((folder / fs::path(path)).string()); };
      if (const auto found = find_in(*folders, below); !found.empty()) return newest_of(found);
    }
    const std::string last = fs::path(path).filename().string();
    const std::string step = is_number(last) ? last : std::to_string(step_of(last));
    for (const Folders* folders : places) {
      for (const std::string& folder : *folders) refuse_missing_step((folder / fs::path(path)).parent_path(), step);
    }
  }
  throw_not_there("there is no checkpoint at \"" + which + "\"", roots, if_none);
}

int64_t bytes_of(const std::string& checkpoint) {
  int64_t bytes = 0;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(checkpoint, gone))
    if (const uintmax_t size = entry.file_size(gone); !gone) bytes += static_cast<int64_t>(size); // fails for folders
  return bytes;
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
