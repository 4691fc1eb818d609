// Step times of a run, and the time left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace gpt2 {

class StepTimes {
 public:
  void step(double seconds);
  void between_steps(double seconds); // time of an evaluation, a sample or a checkpoint
  void step_kind_changed();           // FP8 begins: later steps take another time

  void step_grew(double ratio); // of work: the times so far are scaled

  double step_seconds() const; // median of the last steps; 0 before the first
  double eta_seconds(int64_t steps_left) const;

 private:
  static constexpr int64_t kWarmUp = 3;  // steps that compile, tune and fill caches
  static constexpr size_t kWindow = 101; // steps: adapts to a busy machine, ignores outliers

  int64_t steps_ = 0, same_kind_ = 0; // all, and those of the current kind
  std::deque<double> recent_;
  double between_ = 0;          // seconds, total
  double between_per_step_ = 0; // updated at the last interruption only, or it would shrink with every step
};

} // namespace gpt2
