// What a run has written to its metrics.jsonl (docs/metrics.md), in columns. A run that still writes is followed: each
// look takes up the lines that are whole since the last one.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpt2 {

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN(); // a number that was not logged

struct Moment {
  int64_t step = 0;
  double tokens = 0;  // trained on by then
  double seconds = 0; // of training: all lives of the run, without the pauses between them
};

// All lines of one type, a row each. A number that is missing or null is NaN.
struct MetricTable {
  std::vector<Moment> at;
  std::map<std::string, std::vector<double>> columns;
};

struct RunEvent {
  Moment from, to;  // the same, but for what lasts or was joined
  std::string kind; // of docs/metrics.md, or "resume", "throttle"
  std::string text;
  int64_t count = 1;
};

struct SampleText {
  Moment at;
  std::string text;
};

// Lines `fp8_tensor`: every record has each tensor once.
struct TensorRecords {
  struct Values {
    float amax, saturated, flushed; // NaN: not there, or the scale is fixed
    float telling_flushed;          // the same without `gelu_tail`: NaN there too
  };
  std::vector<Moment> at;                  // of each record
  std::vector<std::string> tensors;        // "h.3/fc/act", in the order of the file
  std::vector<std::vector<Values>> values; // [tensor][record]
};

struct RunMetrics {
  std::vector<nlohmann::json> lives; // the `run` lines
  std::vector<Moment> life_at;       // where each of them began
  MetricTable steps, validations, hellaswags, fp8, device;
  std::vector<RunEvent> events;
  std::vector<SampleText> samples;
  TensorRecords fp8_tensors;
  int64_t skips_in_a_row = 0; // up to the last step
  std::string last_timestamp;
};

class RunReader {
 public:
  // `folder` holds metrics.jsonl. Throws Error(data), now and in read(): no file, nothing in it, a line that is not one
  // of ours. A last line without its end is left for the next time.
  explicit RunReader(std::string folder);

  bool read(); // true: there was more, or a resumed run has made the file anew
  const RunMetrics& metrics() const { return metrics_; }
  const std::string& folder() const { return folder_; }
  std::string name() const; // that of the folder

 private:
  void take(const std::string& bytes); // of a line
  void take_tensor(const nlohmann::json& line, const Moment& at);
  void take_throttling(const Moment& at);
  [[noreturn]] void throw_too_long() const; // the next line
  Moment moment_of(const nlohmann::json& line) const;

  const std::string folder_, path_;
  RunMetrics metrics_;
  uint64_t inode_ = 0;
  int64_t offset_ = 0, line_number_ = 0;
  double seconds_before_ = 0; // of earlier lives
  double tokens_per_step_ = 0;
  Moment last_; // seen
  std::map<std::string, size_t> tensor_index_;
};

// The folder of a run that a user names: a folder, or a name below `log_dir`. Throws Error(data).
std::string find_run(const std::string& run, const std::string& log_dir);

} // namespace gpt2
