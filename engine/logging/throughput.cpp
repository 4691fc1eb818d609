#include "engine/logging/throughput.h"

#include <algorithm>
#include <vector>

namespace gpt2 {

void StepTimes::step(double seconds) {
  ++steps_;
  if (++same_kind_ == kWarmUp + 1) recent_.clear();
  recent_.push_back(seconds);
  if (recent_.size() > kWindow) recent_.pop_front();
}

void StepTimes::between_steps(double seconds) {
  between_ += seconds;
  if (steps_ > 0) between_per_step_ = between_ / static_cast<double>(steps_);
}

void StepTimes::step_kind_changed() { same_kind_ = 0; } // the ETA uses the old times until kWarmUp steps are done

void StepTimes::step_grew(double ratio) {
  if (ratio == 1) return;
  for (double& seconds : recent_) seconds *= ratio;
}

double StepTimes::step_seconds() const {
  if (recent_.empty()) return 0;
  std::vector<double> sorted(recent_.begin(), recent_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

double StepTimes::eta_seconds(int64_t steps_left) const {
  return (step_seconds() + between_per_step_) * static_cast<double>(steps_left);
}

} // namespace gpt2
