// What the user sees: lines, and on a terminal a progress bar below them.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt2 {

struct StepReport {
  int64_t step; // from 1
  int64_t epoch;
  float loss, lr, grad_norm;
  double seconds;
  double tokens_per_second;
  std::optional<double> speed_of_light; // share, where the floor is known
  double eta_seconds;
  std::string precision; // "FP8", "FP8 (emulated)", ...
};

// step  250 | epoch 0 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234 | dt: 156.78ms | tok/sec: 3345.67 | eta: 2m 05s |
// FP8
std::string step_line(const StepReport& report);

std::string progress_bar(int64_t step, int64_t steps, double eta_seconds);

using TableRows = std::vector<std::pair<std::string, std::string>>;
std::string format_table(const TableRows& rows); // names in one column, values in the next

class Console {
 public:
  Console(std::ostream& out, bool terminal) : out_(out), terminal_(terminal) {}
  ~Console() { clear_progress(); }

  void line(const std::string& text);         // above the progress bar, if there is one
  void progress(const std::string& bar_text); // replaces the bar; nothing in a file
  void clear_progress();

 private:
  std::ostream& out_;
  bool terminal_;
  std::string bar_;
};

} // namespace gpt2
