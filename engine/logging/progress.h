// The progress of a run: step lines and, on a terminal, a bar.
#pragma once

#include <cstdint>

#include "engine/base/stopwatch.h"
#include "engine/logging/console.h"
#include "engine/logging/loss_spike.h"
#include "engine/logging/step_report.h"
#include "engine/logging/throughput.h"
#include "engine/model/model.h"

namespace gpt2 {

// Steps between lines under --log_freq auto: 1, 2, 5, 10, 20 ..., about one line a second.
int64_t readable_interval(double step_seconds);

class Progress {
 public:
  // log_freq: steps between lines; 0: every step in a file, readable_interval() on a terminal.
  Progress(Console& console, int64_t log_freq, int64_t max_steps);

  void timed_step(double seconds, int64_t tokens);
  void timed_between_steps(double seconds) { times_.between_steps(seconds); }
  void step_kind_changed() { times_.step_kind_changed(); }
  double eta_seconds(int64_t steps_left) const { return times_.eta_seconds(steps_left); } // steps like the last one

  // Prints a line if one is due or the step is a spike, and draws the bar.
  void show(const StepReport& report, Verdict verdict);

  // Within a long step: moves the bar, and prints a line a minute in a file.
  void show_micro_batch(int64_t step, int done, int of);

 private:
  bool is_due(int64_t step) const;
  void show_bar(const StepReport& report);

  Console& console_;
  const int64_t log_freq_, max_steps_;
  int64_t tokens_per_step_ = 0; // of the last step
  StepTimes times_;
  SpikeDetector loss_spikes_{1.2}, norm_spikes_{5}; // norms vary more
  Stopwatch since_shown_;
  int64_t shown_ = 0;
  double smoothed_loss_ = 0;
};

} // namespace gpt2
