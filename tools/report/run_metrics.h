// Reads the metrics.jsonl of a run (docs/metrics.md) into columns. Each read() adds the lines written since the last
// one.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpt2 {

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN(); // not logged

struct Moment {
  int64_t step = 0;
  double tokens = 0;  // trained on so far
  double seconds = 0; // training time over all starts of the run, without the pauses between them
};

// All lines of one type, one row each. NaN: missing or null.
struct MetricTable {
  std::vector<Moment> at;
  std::map<std::string, std::vector<double>> columns;
};

struct RunEvent {
  Moment from, to;  // equal, except for a period or merged events
  std::string kind; // as in docs/metrics.md, or "resume", "throttle"
  std::string text;
  int64_t count = 1;
};

struct SampleText {
  Moment at;
  std::string text;
};

// The `fp8_tensor` lines: a record has each tensor once.
struct TensorRecords {
  struct Values {
    float amax, saturated, flushed; // NaN: missing, or the scale is fixed
    float telling_flushed;          // `flushed`; NaN also for `gelu_tail`
  };
  std::vector<Moment> at;                  // of each record
  std::vector<std::string> tensors;        // "h.3/fc/act", in the order of the file
  std::vector<std::vector<Values>> values; // [tensor][record]
};

struct RunMetrics {
  std::vector<nlohmann::json> lives; // the `run` lines: one per start or resume
  std::vector<Moment> life_at;       // when each of them began
  MetricTable steps, validations, hellaswags, fp8, device;
  std::vector<RunEvent> events;
  std::vector<SampleText> samples;
  TensorRecords fp8_tensors;
  int64_t skips_in_a_row = 0; // up to the last step
  std::string last_timestamp;
};

class RunReader {
 public:
  // `folder` holds metrics.jsonl. Like read(), throws Error(data): no file, an empty file, an invalid line. An
  // incomplete last line waits for the next read().
  explicit RunReader(std::string folder);

  bool read(); // true: new lines, or a resumed run has rewritten the file
  const RunMetrics& metrics() const { return metrics_; }
  const std::string& folder() const { return folder_; }
  std::string name() const; // of the folder

 private:
  void take(const std::string& bytes); // one line
  void take_tensor(const nlohmann::json& line, const Moment& at);
  void take_throttling(const Moment& at);
  [[noreturn]] void throw_too_long() const; // the next line
  Moment moment_of(const nlohmann::json& line) const;

  const std::string folder_, path_;
  RunMetrics metrics_;
  uint64_t inode_ = 0;
  int64_t offset_ = 0, line_number_ = 0;
  double seconds_before_ = 0; // before the last start
  double tokens_per_step_ = 0;
  Moment last_; // of the last line
  std::map<std::string, size_t> tensor_index_;
};

inline constexpr const char* kLatestRun = "latest";

// Finds the folder of a run given as a folder, as a name in `log_dir` or as kLatestRun: the run in `log_dir` that
// logged last. A name may be a path, as --run_name. Throws Error(data).
std::string find_run(const std::string& run, const std::string& log_dir);

} // namespace gpt2
