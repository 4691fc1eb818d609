#include "engine/logging/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/system/files.h"

namespace gpt2 {
namespace {

// Returns 0 or errno. One write(2), unless it is short.
int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write_some(descriptor, std::as_bytes(std::span(bytes)));
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

} // namespace

AppendFile::AppendFile(std::string path, Mode mode) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (mode == Mode::create ? O_EXCL : 0);
  descriptor_ = retry_on_eintr([&] { return ::open(path_.c_str(), flags, 0666); });
  if (descriptor_ < 0) throw_system_error(ExitCode::disk, "create", path_, errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0) size_ = status.st_size;
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::append(std::string_view record) {
  if (torn_) cut_torn_record();
  if (const int error = write_all(descriptor_, record)) {
    torn_ = true;
    if (::ftruncate(descriptor_, size_) == 0) torn_ = false; // needs no free space
    throw_system_error(ExitCode::disk, "write", path_, error);
  }
  size_ += static_cast<int64_t>(record.size());
}

void AppendFile::cut_torn_record() {
  if (retry_on_eintr([&] { return ::ftruncate(descriptor_, size_); }) != 0)
    throw_system_error(ExitCode::disk, "write", path_, errno);
  torn_ = false;
}

void AppendFile::sync() {
  if (retry_on_eintr([&] { return ::fsync(descriptor_); }) != 0)
    throw_system_error(ExitCode::disk, "write", path_, errno);
}

bool AppendFile::in_place() const { return has_name(descriptor_, path_); }

} // namespace gpt2
