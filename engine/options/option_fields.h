// The one list of options: each field of Options with its flag, group, unit and check.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/options/options.h"

namespace gpt2 {

// An invalid value; what() is the reason, to which the caller adds the flag or file.
struct BadValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Groups of the help that other code tests for.
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
  std::string group;      // heading in the help
  std::string value_name; // "FLOAT", "INT|auto"; empty: a switch, --name and --no-name
  std::string help;
  std::function<std::string(const Options&)> text;       // the value as a flag takes it
  std::function<void(Options&, const std::string&)> set; // throws BadValue
  bool is_number = false;                                // or a switch: unquoted in TOML, unless "auto"
  bool not_stored = false; // applies to one start: neither checkpoints nor option files store it

  bool is_switch() const { return value_name.empty(); }
  bool same(const Options& a, const Options& b) const { return text(a) == text(b); }
  void copy(const Options& from, Options& to) const { set(to, text(from)); }
  std::string toml(const Options& options) const; // the value in TOML, also valid JSON
};

const std::vector<OptionField>& option_fields();
const OptionField* find_field(const std::string& name); // nullptr: unknown

} // namespace gpt2
