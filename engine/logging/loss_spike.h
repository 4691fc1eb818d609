// Detects values far above those before them.
#pragma once

#include <cmath>
#include <cstdint>

namespace gpt2 {

class SpikeDetector {
 public:
  // A spike is more than 6 standard deviations above the mean of earlier values, and more than `times` that mean.
  explicit SpikeDetector(double times) : times_(times) {}

  // Call once per step. A non-finite value is a spike too, and does not enter the mean.
  bool is_spike(double value) {
    if (!std::isfinite(value)) return true;
    const double deviation = std::sqrt(variance_);
    const bool spike = seen_ >= kLearned && value > mean_ + 6 * deviation && value > times_ * mean_;
    const double weight = seen_ < kLearned ? 1.0 / static_cast<double>(seen_ + 1) : 1.0 / kLearned;
    const double difference = value - mean_;
    mean_ += weight * difference;
    variance_ = (1 - weight) * (variance_ + weight * difference * difference);
    ++seen_;
    return spike;
  }

 private:
  static constexpr int64_t kLearned = 20; // values before the first decision, and the averaging window
  const double times_;
  int64_t seen_ = 0;
  double mean_ = 0, variance_ = 0;
};

} // namespace gpt2
