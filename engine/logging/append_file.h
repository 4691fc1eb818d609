// A file of records. Each append is one write(2) with O_APPEND, so readers and crashes see whole records.
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

  // All or nothing: what a full disk let through of a record is cut off again before the Error or, should even that
  // fail, before the next record.
  void append(std::string_view record);
  void sync(); // to the disk

  bool in_place() const; // its path still leads to it: nobody has removed or replaced it
  bool empty() const { return size_ == 0; }

 private:
  void cut_torn_record();

  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0; // of the whole records so far
  bool torn_ = false;
};

} // namespace gpt2
