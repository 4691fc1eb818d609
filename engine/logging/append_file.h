// A file of records. Each append is one write(2) with O_APPEND: readers and crashes see whole records.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpt2 {

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
  void cut_torn_record();

  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0; // bytes of whole records
  bool torn_ = false;
};

} // namespace gpt2
