#include "engine/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/base/files.h"
#include "engine/base/process.h"

namespace gpt2 {
namespace {

constexpr int kAttempts = 100; // more would mean a file system that numbers its files anew each time

// Is the file behind the descriptor still the one of that name? A writer that ends removes its own.
bool has_name(int descriptor, const std::string& path) {
  struct stat open_file {
  }, named_file{};
  if (::fstat(descriptor, &open_file) != 0 || ::stat(path.c_str(), &named_file) != 0) return false;
  return open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

void write_owner(int descriptor) {
  const std::string owner = "process " + std::to_string(::getpid()) + " on " + host_name();
  // For the message below only: the lock holds without it.
  if (::ftruncate(descriptor, 0) != 0) return;
  [[maybe_unused]] const ssize_t ignored = ::pwrite(descriptor, owner.data(), owner.size(), 0);
}

std::string read_owner(int descriptor) {
  char text[300];
  const ssize_t size = ::pread(descriptor, text, sizeof text, 0);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "another process";
}

} // namespace

FolderLock::FolderLock(std::string folder, const std::string& flag)
    : folder_(std::move(folder)), path_(folder_ + "/.lock") {
  for (int attempt = 0;; ++attempt) {
    make_folders(folder_);
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno == ENOENT && attempt < kAttempts) continue; // a writer that ended removed the folder
    if (descriptor_ < 0) throw_system_error(ExitCode::disk, "create", path_, errno);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      const std::string owner = read_owner(descriptor_);
      ::close(descriptor_);
      throw Error(ExitCode::usage, "another run is writing to " + folder_ + ": " + owner,
                  "give this run a " + flag + " of its own, or end the other one first");
    }
    if (has_name(descriptor_, path_) || attempt == kAttempts) break;
    ::close(descriptor_); // removed between our open and our lock: take the next one
  }
  write_owner(descriptor_);
}

FolderLock::~FolderLock() {
  ::unlink(path_.c_str()); // while it is locked: nobody else's
  ::rmdir(folder_.c_str());
  ::close(descriptor_);
}

} // namespace gpt2
