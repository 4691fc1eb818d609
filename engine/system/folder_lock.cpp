#include "engine/system/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/system/files.h"
#include "engine/system/process.h"

namespace gpt2 {
namespace {

constexpr int kAttempts = 100; // more: a file system without stable inode numbers

void write_owner(int descriptor) {
  const std::string owner = "process " + std::to_string(::getpid()) + " on " + host_name();
  // For the error message only: the lock does not need it.
  if (retry_on_eintr([&] { return ::ftruncate(descriptor, 0); }) != 0) return;
  write_all(descriptor, std::as_bytes(std::span(owner)), 0);
}

std::string read_owner(int descriptor) {
  char text[300];
  const ssize_t size = read_all(descriptor, std::as_writable_bytes(std::span(text)), 0);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "another process";
}

} // namespace

FolderLock::FolderLock(std::string folder, const std::string& flag)
    : folder_(std::move(folder)), path_(folder_ + "/.lock"), flag_(flag) {
  lock();
}

void FolderLock::lock() {
  for (int attempt = 0;; ++attempt) {
    folder_is_ours_ = ::access(folder_.c_str(), F_OK) != 0 || ::access(path_.c_str(), F_OK) == 0;
    make_folders(folder_);
    OwnedDescriptor file = open_descriptor(path_, O_RDWR | O_CREAT);
    if (!file.is_open() && errno == ENOENT && attempt < kAttempts)
      continue; // another writer removed the folder as it ended
    if (!file.is_open()) throw_system_error(ExitCode::disk, "create", path_, errno);
    if (!try_lock(file.descriptor(), LOCK_EX)) {
      throw Error(ExitCode::usage, "another run is writing to " + folder_ + ": " + read_owner(file.descriptor()),
                  "give this run another " + flag_ + ", or end the other run first");
    }
    recognizable_ = has_name(file.descriptor(), path_);
    if (!recognizable_ && attempt < kAttempts) continue; // removed between open and flock
    write_owner(file.descriptor());
    file_ = std::move(file);
    return;
  }
}

bool FolderLock::is_ours() const { return file_.is_open() && (!recognizable_ || has_name(file_.descriptor(), path_)); }

bool FolderLock::hold() {
  if (is_ours()) return false;
  file_.close();
  try {
    lock();
    return true;
  } catch (const Error& error) {
    if (error.code() == ExitCode::usage) throw;
    return false;
  }
}

FolderLock::~FolderLock() {
  if (!is_ours()) return;
  ::unlink(path_.c_str()); // under the lock, so the file is ours
  if (folder_is_ours_) ::rmdir(folder_.c_str());
}

bool has_writer(const std::string& folder) {
  const OwnedDescriptor file = open_descriptor(folder + "/.lock", O_RDONLY);
  return file.is_open() && !try_lock(file.descriptor(), LOCK_SH);
}

} // namespace gpt2
