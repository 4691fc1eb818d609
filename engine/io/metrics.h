// metrics.jsonl: one JSON object a line, one line a step, for anything that is not TensorBoard.
//
//   {"step":250,"loss":3.456789,"lr":0.0006,"verdict":"applied"}
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/io/append_file.h"

namespace gpt2 {

using MetricValue = std::variant<float, double, int64_t, bool, std::string>;

struct Metric {
  std::string name;
  MetricValue value;
};

class MetricsLog {
 public:
  // Opens `path` to log `first_step` next. On resume (first_step > 0) the lines of an earlier life from that step on,
  // and a line torn by a kill, are dropped; the rest stay. A new run (first_step 0) starts an empty file, and one that
  // is there already is kept as PATH.1, PATH.2, ...  Throws Error(disk).
  explicit MetricsLog(const std::string& path, int64_t first_step = 0);

  // One line, one write. NaN and infinities become null, so that any JSON parser reads it and the column stays numeric.
  void write(int64_t step, const std::vector<Metric>& metrics);
  void flush(); // to the disk

 private:
  AppendFile file_;
};

} // namespace gpt2
