// How fast a run goes, and when it will be done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace gpt2 {

class Pace {
 public:
  void step(double seconds);
  void between_steps(double seconds); // what an evaluation, a sample or a checkpoint took
  void other_steps_follow();          // the steps so far tell nothing of how long theirs take

  double step_seconds() const; // the median of the last steps; 0 before the first
  double eta_seconds(int64_t steps_left) const;

 private:
  static constexpr int64_t kWarmUp = 3;  // steps that compile, tune and fill caches
  static constexpr size_t kWindow = 101; // steps: follows a machine that gets busy, ignores a hiccup

  int64_t steps_ = 0, alike_ = 0; // all, and those of the kind under way
  std::deque<double> recent_;
  double between_ = 0;          // seconds, all together
  double between_per_step_ = 0; // as of the last interruption: spread over the steps since, it would seem to shrink
};

} // namespace gpt2
