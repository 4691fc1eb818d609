// metrics.jsonl: one JSON object a line, each of a type, for anything that is not TensorBoard; docs/metrics.md says
// what each type holds.
//
//   {"type":"step","step":250,"timestamp":"2026-11-15T11:42:18.125Z","seconds":61.5,"loss":3.456789,"lr":0.0006}
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/log.h"
#include "engine/logging/log_file.h"

namespace gpt2 {

struct JsonText { // is JSON already: written as it stands
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
  // Opens `path` to log `first_step` next. On resume (first_step > 0) the lines of an earlier life from that step on,
  // and a line torn by a kill, are dropped; the rest stay. Where other lines cannot be parsed, the file as it was is
  // kept as PATH.1, PATH.2, ... and one warning says so. A new run (first_step 0) starts an empty file, and one that is
  // there already is kept in the same way. Throws Error(disk); later failures are warnings (LogFile).
  explicit MetricsLog(const std::string& path, int64_t first_step = 0, const Warn& warn = log_warn);

  // One line, one write: type, step, time and the metrics. NaN and infinities become null, so that any JSON parser
  // reads it and the column stays numeric.
  void write(std::string_view type, int64_t step, const std::vector<Metric>& metrics);
  void flush(); // to the disk

 private:
  LogFile file_;
  const std::chrono::steady_clock::time_point opened_ = std::chrono::steady_clock::now();
};

} // namespace gpt2
