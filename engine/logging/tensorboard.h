// TensorBoard event files: TFRecord framing (masked CRC-32C) around hand-encoded protobuf. One write per event: a
// killed run leaves a readable file.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>

#include "engine/base/log.h"
#include "engine/logging/log_file.h"

namespace gpt2 {

using HParam = std::variant<double, std::string, bool>;

class TensorBoardLogger {
 public:
  // Creates `folder` and a new events.out.tfevents.* in it. On resume, pass the first step to log: TensorBoard then
  // drops the events of earlier files from that step on (SessionLog START). Throws Error(disk); later failures are
  // warnings (LogFile).
  explicit TensorBoardLogger(const std::string& folder, int64_t resume_step = 0, Warn warn = log_warn);
  ~TensorBoardLogger();

  void add_scalar(const std::string& tag, double value, int64_t step);
  void add_histogram(const std::string& tag, std::span<const float> values, int64_t step);
  void add_text(const std::string& tag, const std::string& text, int64_t step); // Markdown
  void add_hparams(const std::map<std::string, HParam>& hparams, const std::string& metric_tag);
  void flush() { file_.flush(); } // fsync
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  LogFile file_;
  bool session_open_ = false; // hparams were written, session_end_info was not
};

} // namespace gpt2
