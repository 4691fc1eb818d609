// How a checkpoint comes into being, and what a crash may leave behind.
#include "engine/io/checkpoint_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/io/checkpoint_names.h"
#include "engine/io/manifest.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

constexpr auto kStillWarm = std::chrono::minutes(2); // a writer on another host, whose process id means nothing here

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

void check_free_space(const std::string& folder, int64_t parameters) {
  const int64_t needed = parameters * 12 + (1 << 20); // weights and two moments in FP32, and the rest
  const int64_t available = free_disk_space(folder);
  if (available >= needed) return;
  throw Error(ExitCode::disk,
              "a checkpoint in " + folder + " needs " + format_bytes(static_cast<double>(needed)) + ", and " +
                  format_bytes(static_cast<double>(available)) + " are free",
              "free some disk space, delete old checkpoints, or choose another --checkpoint_dir");
}

// ---- many ranks ----

template <class Work>
std::optional<Error> attempt(const Work& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

std::string to_message(const std::optional<Error>& error) {
  if (!error) return "";
  const std::string separator(1, '\0');
  return std::to_string(static_cast<int>(error->code())) + separator + error->what() + separator + error->hint();
}

AgreedError from_message(const std::string& message, const std::string& rank) {
  const size_t what = message.find('\0') + 1, hint = message.find('\0', what) + 1;
  return AgreedError(static_cast<ExitCode>(std::stoi(message)), rank + ": " + message.substr(what, hint - 1 - what),
                     message.substr(hint));
}

// Every rank hears how the others fared: all go on, or all throw the error of the first that failed.
void agree(RankGroup& group, const std::optional<Error>& mine) {
  if (group.alone()) {
    if (mine) throw Error(*mine);
    return;
  }
  const std::vector<std::string> all = group.all_gather(to_message(mine));
  const auto failed = std::find_if(all.begin(), all.end(), [](const std::string& message) { return !message.empty(); });
  if (failed == all.end()) return;
  // Whoever throws may end at once, and would be taken for the failure by those that have not heard the reason yet.
  attempt([&] { group.barrier(); });
  throw from_message(*failed, group.name_of(static_cast<int>(failed - all.begin())));
}

void expect_from(int rank, const std::string& path) {
  std::error_code unreadable;
  if (fs::exists(path, unreadable)) return;
  throw Error(ExitCode::disk, "cannot see " + path + ", which rank " + std::to_string(rank) + " made",
              "--checkpoint_dir must be on a file system that all nodes share");
}

// The rank's line of the manifest.
std::string write_part(const std::string& folder, StatefulModel& model, const TrainState& state,
                       const RankGroup& group) {
  expect_from(0, folder);
  write_rank_file(folder, group.rank(), group.ranks(), model.config(), state, *model.snapshot());
  if (group.leads()) write_file_atomic(folder + "/options.toml", state.options_toml);
  return manifest_entry(rank_file(folder, group.rank()));
}

// A folder of rank 0's name that was once left behind on another node would take that rank's file all the same.
void expect_all_parts(const std::string& folder, int ranks) {
  for (int rank = 1; rank < ranks; ++rank) expect_from(rank, rank_file(folder, rank));
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
  if (step_of(base) < 0 && base != kLatest && base != kBest) return {};
  pid_t writer = 0;
  const auto [end, error] = std::from_chars(name.data() + at + marker.size(), name.data() + name.size(), writer);
  const bool good = error == std::errc() && end == name.data() + name.size() && writer > 0;
  return good ? Leftover{base, writer} : Leftover{};
}

void clean_leftovers(const std::string& folder) {
  std::error_code ignored; // cleaning is a courtesy: what cannot be removed stays
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) entries.push_back(entry.path());
  for (const fs::path& path : entries) {
    const std::string name = path.filename().string();
    const Leftover unfinished = parse_leftover(name, ".tmp-"), aside = parse_leftover(name, ".old-");
    if (unfinished.writer && is_abandoned(path, unfinished.writer)) fs::remove_all(path, ignored);
    if (!aside.writer || !is_abandoned(path, aside.writer)) continue;
    if (fs::exists(fs::path(folder) / aside.name))
      fs::remove_all(path, ignored);
    else
      fs::rename(path, fs::path(folder) / aside.name, ignored);
  }
}

} // namespace

CheckpointFolder::CheckpointFolder(const std::string& checkpoint_dir, const std::string& run)
    : root_(without_slashes(checkpoint_dir)), run_(without_slashes(run)), folder_(root_ + "/" + run_) {}

std::string CheckpointFolder::save(StatefulModel& model, const TrainState& state, bool is_best, RankGroup& group) {
  const std::string name = step_folder_name(state.step), path = folder_ + "/" + name;
  const auto busy = group.busy();       // a disk may be slower than the others' patience
  std::optional<PendingFolder> pending; // of rank 0
  agree(group, attempt([&] {
          if (!group.leads()) return;
          make_folders(folder_);
          for (const std::string& folder : {root_, folder_}) clean_leftovers(folder);
          check_free_space(folder_, ParameterTable(model.config()).size());
          pending.emplace(path);
        }));
  const std::string temporary = group.broadcast(pending ? fs::absolute(pending->temporary_path()).string() : "");
  std::string hashes; // of this rank's file
  agree(group, attempt([&] { hashes = write_part(temporary, model, state, group); }));
  const std::vector<std::string> hashes_of_all = group.gather(hashes);
  agree(group, attempt([&] {
          if (!group.leads()) return;
          expect_all_parts(temporary, group.ranks());
          write_manifest(temporary, state.step, hashes_of_all);
          pending->commit();
          write_file_atomic(folder_ + "/" + kLatest, name + "\n");
          if (is_best) write_file_atomic(folder_ + "/" + kBest, name + "\n");
          for (const char* marker : {kLatest, kBest}) show_in_root(marker);
        }));
  return path;
}

// This run saved last: its marker becomes that of the whole --checkpoint_dir. Other runs write there too, on other
// hosts perhaps under the same process id, so the new file is made in the run's own folder.
void CheckpointFolder::show_in_root(const char* marker) const {
  const std::string checkpoint = follow_marker(folder_, marker);
  if (checkpoint.empty()) return;
  const std::string made = folder_ + "/.newest_" + marker, wanted = root_ + "/" + marker;
  write_file_atomic(made, run_ + "/" + fs::path(checkpoint).filename().string() + "\n");
  if (std::rename(made.c_str(), wanted.c_str()) != 0) throw_system_error(ExitCode::disk, "replace", wanted, errno);
  sync_path(root_);
}

void CheckpointFolder::check_writable(int64_t parameters) const {
  make_folders(folder_);
  const std::string probe = folder_ + "/.probe-" + std::to_string(::getpid());
  write_file_atomic(probe, "");
  ::unlink(probe.c_str());
  check_free_space(folder_, parameters);
}

} // namespace gpt2
