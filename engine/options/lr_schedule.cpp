#include "engine/options/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace gpt2 {
namespace {

// 0 up to `begin`, 1 from `end` on; 1 if both are the same step.
double progress(int64_t step, int64_t begin, int64_t end) {
  if (step >= end) return 1;
  if (step <= begin) return 0;
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

double remaining_share(const Schedule& s, int64_t step) { // of max_lr, after the warm-up
  const double low = s.min_lr_ratio;
  const int64_t last = s.max_steps - 1;
  switch (s.decay) {
    case Decay::constant:
      return 1;
    case Decay::linear:
      return low + (1 - low) * (1 - progress(step, s.warmup_steps, last));
    case Decay::cosine:
      return low + (1 - low) * 0.5 * (1 + std::cos(M_PI * progress(step, s.warmup_steps, last)));
    case Decay::wsd: {
      const int64_t cooling = cooling_steps(s);
      if (cooling == 0) return 1;
      return low + (1 - low) * (1 - progress(step, std::max(s.warmup_steps, last - cooling), last));
    }
  }
  return 1;
}

} // namespace

int64_t cooling_steps(const Schedule& s) {
  if (s.wsd_decay_ratio <= 0) return 0;
  return std::max<int64_t>(1, std::llround(s.wsd_decay_ratio * static_cast<double>(s.max_steps)));
}

float learning_rate(const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) {
    return static_cast<float>(schedule.max_lr * static_cast<double>(step + 1) /
                              static_cast<double>(schedule.warmup_steps));
  }
  return static_cast<float>(schedule.max_lr * remaining_share(schedule, step));
}

} // namespace gpt2
