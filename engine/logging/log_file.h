// A file of records whose failures never end the run: records that cannot be written are dropped, with one warning,
// until writing works again. Every record in the file is whole and unique.
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
  std::optional<AppendFile> file_; // nullopt: removed, and not recreated yet
  std::string head_;
  int64_t missing_ = 0; // records dropped since the last write
  bool failure_reported_ = false, recovery_reported_ = false;
};

} // namespace gpt2
