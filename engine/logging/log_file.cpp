#include "engine/logging/log_file.h"

#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/system/files.h"

namespace gpt2 {

LogFile::LogFile(std::string path, AppendFile::Mode mode, Warn warn)
    : path_(std::move(path)), warn_(std::move(warn)), file_(std::in_place, path_, mode) {}

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
  file_.emplace(path_, AppendFile::Mode::append);
  if (!file_->empty() || head_.empty()) return; // not empty: its disk was mounted again
  try {
    file_->append(head_);
  } catch (const Error&) {
    file_.reset();
    throw;
  }
}

} // namespace gpt2
