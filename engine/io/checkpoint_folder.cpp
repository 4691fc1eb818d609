// How a checkpoint comes into being, what a crash may leave behind, and how one is found again.
#include "engine/io/checkpoint_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "engine/base/files.h"
#include "engine/base/log.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

const std::string kDamaged = "damaged";              // in place of the precision, in a list
constexpr auto kStillWarm = std::chrono::minutes(2); // a writer on another host, whose process id means nothing here

// ---- names ----

std::string state_file_of(const std::string& checkpoint_folder) { return checkpoint_folder + "/state.h5"; }

bool is_complete(const std::string& checkpoint_folder) {
  std::error_code absent;
  return fs::is_regular_file(state_file_of(checkpoint_folder), absent);
}

int64_t step_of(const std::string& checkpoint_folder) {
  const std::string name = fs::path(checkpoint_folder).filename().string(), prefix = "step_";
  if (!name.starts_with(prefix)) return -1;
  int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

std::string step_folder_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step_%08lld", static_cast<long long>(step));
  return name;
}

// ---- coming into being ----

// A folder under a temporary name, removed unless it was put in its place.
class PendingFolder {
 public:
  explicit PendingFolder(std::string path)
      : path_(std::move(path)), temporary_(path_ + ".tmp-" + std::to_string(::getpid())) {
    make_folders(temporary_);
  }
  ~PendingFolder() {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored); // after commit(): what was there before, if anything
  }
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;

  const std::string& temporary_path() const { return temporary_; }

  void commit() {
    sync_path(temporary_);
    if (fs::is_directory(path_))
      exchange();
    else
      rename(temporary_, path_);
    sync_path(fs::absolute(path_).parent_path().string());
  }

 private:
  static void rename(const std::string& from, const std::string& to) {
    if (std::rename(from.c_str(), to.c_str()) != 0) throw_system_error(ExitCode::disk, "replace", to, errno);
  }

  // The old folder and the new one swap names in one step. Where the file system cannot do that (NFS), the old one
  // steps aside first; clean_leftovers brings it back should we die in between.
  void exchange() {
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) return;
    if (errno != EINVAL && errno != ENOSYS) throw_system_error(ExitCode::disk, "replace", path_, errno);
    const std::string aside = path_ + ".old-" + std::to_string(::getpid());
    rename(path_, aside);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int error_number = errno;
      std::rename(aside.c_str(), path_.c_str());
      throw_system_error(ExitCode::disk, "replace", path_, error_number);
    }
    temporary_ = aside;
  }

  std::string path_, temporary_;
};

void check_free_space(const std::string& root, int64_t parameters) {
  const int64_t needed = parameters * 12 + (1 << 20); // weights and two moments in FP32, and the rest
  const int64_t available = free_disk_space(root);
  if (available >= needed) return;
  throw Error(ExitCode::disk,
              "a checkpoint in " + root + " needs " + format_bytes(static_cast<double>(needed)) + ", and " +
                  format_bytes(static_cast<double>(available)) + " are free",
              "free some disk space, delete old checkpoints, or choose another --checkpoint_dir");
}

// ---- what a crash may leave behind ----

fs::file_time_type last_write(const fs::path& path) {
  std::error_code gone;
  fs::file_time_type newest = fs::last_write_time(path, gone);
  for (const auto& entry : fs::directory_iterator(path, gone)) newest = std::max(newest, entry.last_write_time(gone));
  return newest;
}

// Ours: left by an earlier process of the same id (in a container it is always the same). Another's: only if no such
// process lives here and nothing was written lately.
bool is_abandoned(const fs::path& path, pid_t writer) {
  if (writer == ::getpid()) return true;
  if (::kill(writer, 0) == 0 || errno != ESRCH) return false;
  return fs::file_time_type::clock::now() - last_write(path) > kStillWarm;
}

// "step_00001000.tmp-4711" -> {"step_00001000", 4711}; also latest.tmp-4711 and best.tmp-4711.
struct Leftover {
  std::string name;
  pid_t writer = 0; // 0: not a leftover of ours
};

Leftover parse_leftover(const std::string& name, const std::string& marker) {
  const size_t at = name.find(marker);
  if (at == std::string::npos) return {};
  const std::string base = name.substr(0, at);
  if (step_of(base) < 0 && base != "latest" && base != "best") return {};
  pid_t writer = 0;
  const auto [end, error] = std::from_chars(name.data() + at + marker.size(), name.data() + name.size(), writer);
  const bool good = error == std::errc() && end == name.data() + name.size() && writer > 0;
  return good ? Leftover{base, writer} : Leftover{};
}

void clean_leftovers(const std::string& root) {
  std::error_code ignored; // cleaning is a courtesy: what cannot be removed stays
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(root, ignored)) entries.push_back(entry.path());
  for (const fs::path& path : entries) {
    const std::string name = path.filename().string();
    const Leftover unfinished = parse_leftover(name, ".tmp-"), aside = parse_leftover(name, ".old-");
    if (unfinished.writer && is_abandoned(path, unfinished.writer)) fs::remove_all(path, ignored);
    if (!aside.writer || !is_abandoned(path, aside.writer)) continue;
    if (fs::exists(fs::path(root) / aside.name))
      fs::remove_all(path, ignored);
    else
      fs::rename(path, fs::path(root) / aside.name, ignored);
  }
}

// ---- finding one again ----

// The folder that `latest` or `best` names, "" if there is none.
std::string follow_marker(const std::string& root, const std::string& marker) {
  std::error_code absent;
  if (!fs::is_regular_file(root + "/" + marker, absent)) return "";
  std::string name = read_text_file(root + "/" + marker, ExitCode::checkpoint);
  name.erase(name.find_last_not_of(" \r\n\t") + 1);
  const std::string folder = root + "/" + name;
  return step_of(name) >= 0 && is_complete(folder) ? folder : "";
}

std::string what_is_there(const std::string& root, std::vector<CheckpointInfo> checkpoints) {
  std::erase_if(checkpoints, [](const CheckpointInfo& info) { return info.precision == kDamaged; });
  if (checkpoints.empty()) return "start a new run without --resume, or check --checkpoint_dir";
  constexpr size_t kShown = 8;
  std::string steps = checkpoints.size() > kShown ? "... " : "";
  const size_t first = checkpoints.size() > kShown ? checkpoints.size() - kShown : 0;
  for (size_t i = first; i < checkpoints.size(); ++i) {
    steps += (i > first ? ", " : "") + std::to_string(checkpoints[i].step);
  }
  return "choose one of the steps in " + root + ": " + steps;
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string newest_usable(const std::string& root, const std::vector<CheckpointInfo>& checkpoints) {
  for (auto info = checkpoints.rbegin(); info != checkpoints.rend(); ++info) {
    if (info->precision != kDamaged) return info->path;
  }
  throw Error(ExitCode::checkpoint, "there is no checkpoint in " + root, what_is_there(root, {}));
}

// A checkpoint, its state file, a folder of checkpoints, or the name of a checkpoint in `root`.
std::string resolve_path(const std::string& root, const std::string& which) {
  std::string path = which;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (is_complete(path)) return path;
  if (path.ends_with("/state.h5") && is_complete(fs::path(path).parent_path().string())) {
    return fs::path(path).parent_path().string();
  }
  const CheckpointFolder other(path);
  if (!path.empty() && !other.list().empty()) return other.resolve("latest");
  if (step_of(path) >= 0 && is_complete(root + "/" + path)) return root + "/" + path;
  throw Error(ExitCode::checkpoint, "there is no checkpoint at \"" + which + "\"",
              what_is_there(root, CheckpointFolder(root).list()));
}

// ---- reading one ----

bool can_be_opened(const std::string& checkpoint_folder) {
  try {
    read_state_header(state_file_of(checkpoint_folder));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// What to do if this checkpoint turns out to be damaged: the newest older one in the same folder that can be opened.
std::string hint_if_damaged(const std::string& checkpoint_folder) {
  const int64_t step = step_of(checkpoint_folder);
  const fs::path siblings = fs::absolute(checkpoint_folder).parent_path();
  std::string older;
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(siblings, unreadable)) {
    const std::string candidate = entry.path().string();
    const int64_t candidate_step = step_of(candidate);
    if (candidate_step < 0 || candidate_step >= step || candidate_step <= step_of(older)) continue;
    if (can_be_opened(candidate)) older = candidate;
  }
  if (older.empty()) return "start a new run without --resume: there is no older checkpoint beside it";
  return "resume from the one before it: --resume " + std::to_string(step_of(older));
}

} // namespace

CheckpointFolder::CheckpointFolder(std::string root) : root_(std::move(root)) {
  while (root_.size() > 1 && root_.ends_with('/')) root_.pop_back();
}

std::string CheckpointFolder::save(StatefulModel& model, const TrainState& state, bool is_best) {
  make_folders(root_);
  clean_leftovers(root_);
  check_free_space(root_, ParameterTable(model.config()).size());
  const std::string name = step_folder_name(state.step), path = root_ + "/" + name;
  {
    PendingFolder pending(path);
    write_state_file(state_file_of(pending.temporary_path()), model, state);
    write_file_atomic(pending.temporary_path() + "/options.toml", state.options_toml);
    pending.commit();
  }
  write_file_atomic(root_ + "/latest", name + "\n");
  if (is_best) write_file_atomic(root_ + "/best", name + "\n");
  return path;
}

std::vector<CheckpointInfo> CheckpointFolder::list() const {
  const std::string latest = follow_marker(root_, "latest"), best = follow_marker(root_, "best");
  std::vector<CheckpointInfo> checkpoints;
  std::error_code absent; // no folder: no checkpoints
  for (const auto& entry : fs::directory_iterator(root_, absent)) {
    const std::string path = root_ + "/" + entry.path().filename().string();
    if (step_of(path) < 0 || !is_complete(path)) continue;
    CheckpointInfo info;
    info.path = path;
    info.step = step_of(path);
    info.bytes = static_cast<int64_t>(fs::file_size(state_file_of(path), absent));
    info.latest = path == latest;
    info.best = path == best;
    try {
      const StateHeader header = read_state_header(state_file_of(path));
      info.val_loss = header.val_loss;
      info.val_step = header.val_step;
      info.written = header.written;
      info.precision = header.precision;
    } catch (const Error&) { // shown, so that nobody wonders where it went
      info.val_loss = 1e30;
      info.precision = kDamaged;
    }
    checkpoints.push_back(info);
  }
  std::sort(checkpoints.begin(), checkpoints.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return checkpoints;
}

std::string CheckpointFolder::resolve(const std::string& which) const {
  if (which == "latest") {
    const std::string path = follow_marker(root_, which);
    return path.empty() ? newest_usable(root_, list()) : path;
  }
  if (which == "best") {
    const std::string path = follow_marker(root_, which);
    if (!path.empty()) return path;
    throw Error(ExitCode::checkpoint, "no checkpoint in " + root_ + " is marked as best", what_is_there(root_, list()));
  }
  if (is_number(which)) {
    const std::string path = root_ + "/" + step_folder_name(std::strtoll(which.c_str(), nullptr, 10));
    if (is_complete(path)) return path;
    throw Error(ExitCode::checkpoint, "there is no checkpoint of step " + which + " in " + root_,
                what_is_there(root_, list()));
  }
  return resolve_path(root_, which);
}

void CheckpointFolder::check_writable(int64_t parameters) const {
  make_folders(root_);
  const std::string probe = root_ + "/.probe-" + std::to_string(::getpid());
  write_file_atomic(probe, "");
  ::unlink(probe.c_str());
  check_free_space(root_, parameters);
}

TrainState load_checkpoint(const std::string& folder, StatefulModel& model) {
  return load_state_file(state_file_of(folder), hint_if_damaged(folder), model);
}

TrainState read_checkpoint(const std::string& folder) {
  return read_train_state(state_file_of(folder), hint_if_damaged(folder));
}

} // namespace gpt2
