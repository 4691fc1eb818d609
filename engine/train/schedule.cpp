#include "engine/train/schedule.h"

#include <algorithm>
#include <cmath>

namespace gpt2 {
namespace {

// 0 at `begin`, 1 at `end`.
double progress(int64_t step, int64_t begin, int64_t end) {
  if (step <= begin) return 0;
  if (step >= end) return 1;
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

double remaining_share(const Schedule& s, int64_t step) { // of max_lr, after the warm-up
  const double low = s.min_lr_ratio;
  switch (s.decay) {
    case Decay::constant:
      return 1;
    case Decay::linear:
      return 1 - (1 - low) * progress(step, s.warmup_steps, s.max_steps);
    case Decay::cosine:
      return low + (1 - low) * 0.5 * (1 + std::cos(M_PI * progress(step, s.warmup_steps, s.max_steps)));
    case Decay::wsd: {
      const auto cooling = static_cast<int64_t>(std::llround(s.wsd_decay_ratio * static_cast<double>(s.max_steps)));
      const int64_t begin = std::max(s.warmup_steps, s.max_steps - cooling);
      return 1 - (1 - low) * progress(step, begin, s.max_steps);
    }
  }
  return 1;
}

} // namespace

float learning_rate(const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) {
    return static_cast<float>(schedule.max_lr * static_cast<double>(step + 1) /
                              static_cast<double>(schedule.warmup_steps));
  }
  return static_cast<float>(schedule.max_lr * remaining_share(schedule, step));
}

} // namespace gpt2
