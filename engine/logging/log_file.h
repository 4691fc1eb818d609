// Files of records, for logs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace gpt2 {

// A file of records. Each append is one write(2) with O_APPEND: readers and crashes see whole records.
class AppendFile {
 public:
  enum class Mode {
    create, // fails if the path exists
    append, // continues an existing file
  };
  AppendFile(std::string path, Mode mode); // all members throw Error(disk) with the path
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // All or nothing: a partial write (full disk) is truncated before the Error is thrown or, if that fails, before the
  // next record.
  void append(std::string_view record);
  void sync(); // fsync

  bool in_place() const; // the path still names this file: not removed or replaced
  bool empty() const { return size_ == 0; }

 private:
  bool cut_torn_record();

  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0; // bytes of whole records
  bool torn_ = false;
};

using Warn = std::function<void(const std::string& line)>;

// A file of records whose failures never end the run: records that cannot be written are dropped, with one warning,
// until writing works again. Every record in the file is whole and unique.
class LogFile {
 public:
  LogFile(std::string path, AppendFile::Mode mode, Warn warn); // throws Error(disk)

  void append(std::string_view record);
  void append_to_head(std::string_view record); // repeated at the start of a recreated file

  // fsync. A file that was removed meanwhile, even with its folder, is recreated with a warning.
  void flush();

 private:
  template <class Work>
  bool attempt(const Work& work);
  void recreate();

  const std::string path_;
  const Warn warn_;
  std::unique_ptr<AppendFile> file_; // null: removed, and not recreated yet
  std::string head_;
  int64_t missing_ = 0; // records dropped since the last write
  bool failure_reported_ = false, recovery_reported_ = false;
};

} // namespace gpt2
