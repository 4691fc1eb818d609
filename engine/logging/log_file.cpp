#include "engine/logging/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/system/files.h"

namespace gpt2 {

AppendFile::AppendFile(std::string path, Mode mode) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (mode == Mode::create ? O_EXCL : 0);
  descriptor_ = retry_on_eintr([&] { return ::open(path_.c_str(), flags, 0666); });
  if (descriptor_ < 0) throw_system_error(ExitCode::disk, "create", path_, errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0) size_ = status.st_size;
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::append(std::string_view record) {
  if (torn_ && !cut_torn_record()) throw_system_error(ExitCode::disk, "write", path_, errno);
  if (!write_all(descriptor_, std::as_bytes(std::span(record)))) { // one write(2), unless it is short
    const int error = errno;
    cut_torn_record();
    throw_system_error(ExitCode::disk, "write", path_, error);
  }
  size_ += static_cast<int64_t>(record.size());
}

bool AppendFile::cut_torn_record() { // needs no free space
  torn_ = retry_on_eintr([&] { return ::ftruncate(descriptor_, size_); }) != 0;
  return !torn_;
}

void AppendFile::sync() {
  if (retry_on_eintr([&] { return ::fsync(descriptor_); }) != 0)
    throw_system_error(ExitCode::disk, "write", path_, errno);
}

bool AppendFile::in_place() const { return has_name(descriptor_, path_); }

LogFile::LogFile(std::string path, AppendFile::Mode mode, Warn warn)
    : path_(std::move(path)), warn_(std::move(warn)), file_(std::make_unique<AppendFile>(path_, mode)) {}

// True on success. Only the first failure is logged: a full disk would fail on every record.
template <class Work>
bool LogFile::attempt(const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    if (!std::exchange(failure_reported_, true))
      warn_(std::string(error.what()) + "; the run continues, and so does this log once it can be written again");
    return false;
  }
}

void LogFile::append(std::string_view record) {
  if (!file_ || !attempt([&] { file_->append(record); })) {
    missing_ += 1;
    return;
  }
  if (missing_ > 0 && !std::exchange(recovery_reported_, true))
    warn_(path_ + " is written again; " + std::to_string(missing_) + (missing_ == 1 ? " record is" : " records are") +
          " missing");
  missing_ = 0;
}

void LogFile::append_to_head(std::string_view record) {
  head_ += record;
  append(record);
}

void LogFile::flush() {
  attempt([&] {
    if (!file_ || !file_->in_place()) recreate();
    file_->sync();
  });
}

void LogFile::recreate() {
  if (file_) warn_(path_ + " was removed while the run was writing to it: continuing in a new file");
  file_.reset();
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  if (!folder.empty()) make_folders(folder);
  auto file = std::make_unique<AppendFile>(path_, AppendFile::Mode::append);
  if (file->empty()) file->append(head_); // not empty: its disk was mounted again
  file_ = std::move(file);
}

} // namespace gpt2
