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
  [[maybe_unused]] const ssize_t ignored =
      retry_on_eintr([&] { return ::pwrite(descriptor, owner.data(), owner.size(), 0); });
}

std::string read_owner(int descriptor) {
  char text[300];
  const ssize_t size = retry_on_eintr([&] { return ::pread(descriptor, text, sizeof text, 0); });
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
    descriptor_ = retry_on_eintr([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
    if (descriptor_ < 0 && errno == ENOENT && attempt < kAttempts)
      continue; // another writer removed the folder as it ended
    if (descriptor_ < 0) throw_system_error(ExitCode::disk, "create", path_, errno);
    if (retry_on_eintr([&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK) {
      const std::string owner = read_owner(descriptor_);
      ::close(std::exchange(descriptor_, -1));
      throw Error(ExitCode::usage, "another run is writing to " + folder_ + ": " + owner,
                  "give this run another " + flag_ + ", or end the other run first");
    }
    recognizable_ = has_name(descriptor_, path_);
    if (recognizable_ || attempt == kAttempts) break;
    ::close(descriptor_); // removed between open and flock: retry
  }
  write_owner(descriptor_);
}

bool FolderLock::is_ours() const { return descriptor_ >= 0 && (!recognizable_ || has_name(descriptor_, path_)); }

bool FolderLock::hold() {
  if (is_ours()) return false;
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  try {
    lock();
    return true;
  } catch (const Error& error) {
    if (error.code() == ExitCode::usage) throw;
    return false;
  }
}

FolderLock::~FolderLock() {
  if (is_ours()) { // under the lock, so the file is ours
    ::unlink(path_.c_str());
    if (folder_is_ours_) ::rmdir(folder_.c_str());
  }
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool has_writer(const std::string& folder) {
  const int descriptor = retry_on_eintr([&] { return ::open((folder + "/.lock").c_str(), O_RDONLY | O_CLOEXEC); });
  if (descriptor < 0) return false;
  const bool held = retry_on_eintr([&] { return ::flock(descriptor, LOCK_SH | LOCK_NB); }) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return held;
}

} // namespace gpt2
