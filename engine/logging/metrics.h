// metrics.jsonl: one JSON object per line; docs/metrics.md describes each type.
//
//   {"type":"step","step":250,"timestamp":"2026-11-15T11:42:18.125Z","seconds":61.5,"loss":3.456789,"lr":0.0006}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/stopwatch.h"
#include "engine/logging/log_file.h"

namespace gpt2 {

struct JsonText { // already JSON: written unchanged
  explicit JsonText(std::string json) : text(std::move(json)) {}
  std::string text;
};

using MetricValue = std::variant<float, double, int64_t, bool, std::string, JsonText>;

struct Metric {
  std::string name;
  MetricValue value;
};

class MetricsLog {
 public:
  // Opens `path` to log `first_step` next. On resume (first_step > 0) drops the lines of an earlier start from that
  // step on and a line torn by a kill. If other lines cannot be parsed, the original file is kept as PATH.1, PATH.2,
  // ... with one warning. A new run (first_step 0) starts an empty file and keeps an existing one the same way. Throws
  // Error(disk); later failures are warnings (LogFile).
  explicit MetricsLog(const std::string& path, int64_t first_step = 0, const Warn& warn = log_warn);

  // One line, one write: type, step, time and the metrics. NaN and infinities become null, which every JSON parser
  // accepts.
  void write(std::string_view type, int64_t step, const std::vector<Metric>& metrics);
  void flush() { file_.flush(); } // fsync

 private:
  LogFile file_;
  const Stopwatch opened_;
};

} // namespace gpt2
