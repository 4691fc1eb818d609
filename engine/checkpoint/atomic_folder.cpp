#include "engine/checkpoint/atomic_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "engine/base/parse_number.h"
#include "engine/checkpoint/names.h"
#include "engine/system/files.h"
#include "engine/system/folder_lock.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

constexpr auto kAbandonedAfter = std::chrono::minutes(2); // without a write: its writer may be on another host

void rename(const std::string& from, const std::string& to) {
  if (!renamed(from, to)) throw_system_error(ExitCode::disk, "replace", to, errno);
}

fs::file_time_type last_write(const fs::path& path) {
  std::error_code gone;
  fs::file_time_type newest = fs::last_write_time(path, gone);
  for (const auto& entry : fs::directory_iterator(path, gone)) newest = std::max(newest, entry.last_write_time(gone));
  return newest;
}

// Our own id: an earlier process had it (in a container the id is always the same).
bool is_dead(pid_t writer) { return writer == ::getpid() || (::kill(writer, 0) != 0 && errno == ESRCH); }

// Another id: no such process on this host, and no write within kAbandonedAfter.
bool is_abandoned(const fs::path& path, pid_t writer) {
  return writer == ::getpid() ||
         (is_dead(writer) && fs::file_time_type::clock::now() - last_write(path) > kAbandonedAfter);
}

// "step_00001000.tmp-4711" -> {"step_00001000", 4711}; also latest.tmp-4711 and best.tmp-4711.
struct Leftover {
  std::string name;
  pid_t writer = 0; // 0: not a leftover
};

Leftover parse_leftover(const std::string& name, const std::string& marker) {
  const size_t at = name.find(marker);
  if (at == std::string::npos) return {};
  const std::string base = name.substr(0, at);
  if (step_of(base) < 0 && base != kLatest && base != kBest) return {};
  const pid_t writer = parse_number<pid_t>(name.substr(at + marker.size())).value_or(0);
  return writer > 0 ? Leftover{base, writer} : Leftover{};
}

std::vector<fs::path> entries_of(const std::string& folder) {
  std::error_code absent;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder, absent)) entries.push_back(entry.path());
  return entries;
}

} // namespace

PendingFolder::PendingFolder(std::string path) : path_(std::move(path)), temporary_(temporary_name(path_)) {
  make_folders(temporary_);
}

PendingFolder::~PendingFolder() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored); // after commit(): the folder that was replaced, if any
}

void PendingFolder::commit() {
  sync_path(temporary_);
  std::error_code unreadable;
  if (fs::is_directory(path_, unreadable))
    exchange();
  else
    rename(temporary_, path_);
  sync_path(fs::absolute(path_).parent_path().string());
}

// Old and new folder swap names in one system call. Without it (NFS) the old one is renamed first; if this process dies
// in between, the next writer or reader restores it.
void PendingFolder::exchange() {
  const auto swap = [&] { return ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE); };
  if (retry_on_eintr(swap) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) throw_system_error(ExitCode::disk, "replace", path_, errno);
  const std::string aside = path_ + ".old-" + std::to_string(::getpid());
  rename(path_, aside);
  if (!renamed(temporary_, path_)) {
    const int error_number = errno;
    renamed(aside, path_);
    throw_system_error(ExitCode::disk, "replace", path_, error_number);
  }
  temporary_ = aside;
}

std::string temporary_name(const std::string& path) { return path + ".tmp-" + std::to_string(::getpid()); }

void clean_leftovers(const std::string& folder) {
  std::error_code ignored; // a failure costs disk space only
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename().string();
    const Leftover unfinished = parse_leftover(name, ".tmp-"), aside = parse_leftover(name, ".old-");
    if (unfinished.writer && is_abandoned(path, unfinished.writer)) fs::remove_all(path, ignored);
    if (!aside.writer || !is_abandoned(path, aside.writer)) continue;
    if (fs::exists(fs::path(folder) / aside.name, ignored))
      fs::remove_all(path, ignored);
    else
      renamed(path, fs::path(folder) / aside.name);
  }
}

void restore_set_aside(const std::string& folder) {
  std::error_code ignored;
  for (const fs::path& path : entries_of(folder)) {
    const Leftover aside = parse_leftover(path.filename().string(), ".old-");
    const fs::path wanted = fs::path(folder) / aside.name;
    if (!aside.writer || !is_dead(aside.writer) || fs::exists(wanted, ignored)) continue;
    try {
      const FolderLock alone(folder, "--run_name"); // a writer on another host may be between its two renames
      renamed(path, wanted);
    } catch (const Error&) { // a writer holds the lock, or the folder is read-only
      return;
    }
  }
}

} // namespace gpt2
