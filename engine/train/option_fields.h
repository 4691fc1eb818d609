// The one list of options: each field of Options with its flag, group, unit and check.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/train/options.h"

namespace gpt2 {

// A value that does not fit; what() is the reason, the caller knows whether a flag or a file gave it.
struct BadValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Groups of the help that say who reads an option.
namespace option_group {
constexpr const char* const kOptimizer = "Optimizer";
constexpr const char* const kGpu = "GPU (no effect on the CPU)";
constexpr const char* const kEvaluation = "Evaluation and samples";
constexpr const char* const kLogs = "Logs";
constexpr const char* const kCheckpoints = "Checkpoints";
constexpr const char* const kAnomalies = "Anomaly guard";
} // namespace option_group

struct OptionField {
  std::string name;       // "max_lr": the flag without dashes, and the TOML key
  std::string group;      // of the help
  std::string value_name; // "FLOAT", "INT|auto"; empty: a switch, --name and --no-name
  std::string help;
  std::function<std::string()> toml;           // the field's value as TOML
  std::function<void(const std::string&)> set; // throws BadValue
  bool of_this_start = false;                  // says how processes are started: no run or file remembers it

  bool is_switch() const { return value_name.empty(); }
};

// The fields point into `options`, which must outlive them.
std::vector<OptionField> option_fields(Options& options);

} // namespace gpt2
