// A file of records that never ends its run: what cannot be written is left out, with one warning, until writing works
// again. Every record in the file is whole, and none is there twice.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/logging/append_file.h"

namespace gpt2 {

using Warn = std::function<void(const std::string& line)>;

class LogFile {
 public:
  LogFile(std::string path, AppendFile::Mode mode, Warn warn); // throws Error(disk): at the start nothing is lost

  void append(std::string_view record);
  void append_to_head(std::string_view record); // the head of records is written again to a file that is made again

  // To the disk. A file that was removed meanwhile, with its folder perhaps, is made again, and the user is told.
  void flush();

 private:
  template <class Work>
  bool attempt(const Work& work);
  void make_again();

  const std::string path_;
  const Warn warn_;
  std::optional<AppendFile> file_; // none: removed, and could not be made again yet
  std::string head_;
  int64_t missing_ = 0; // records since the last that was written
  bool failure_told_ = false, recovery_told_ = false;
};

} // namespace gpt2
