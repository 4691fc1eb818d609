// A log of records. Each append is one write(2) with O_APPEND, so readers and crashes see whole records.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpt2 {

class AppendFile {
 public:
  enum class Mode {
    create, // fails if the path exists
    append, // goes on at the end of what is there, if anything
  };
  AppendFile(std::string path, Mode mode); // every failure, here and below, is an Error(disk) that names the path
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // All or nothing: what a full disk let through of a record is cut off again before the Error.
  void append(std::string_view record);
  void sync(); // to the disk

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0; // of the whole records so far
};

} // namespace gpt2
