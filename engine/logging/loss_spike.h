// Notices a value that stands out from those before it.
#pragma once

#include <cmath>
#include <cstdint>

namespace gpt2 {

class SpikeDetector {
 public:
  // Stands out: more than 6 standard deviations and `times` the mean of the values before.
  explicit SpikeDetector(double times) : times_(times) {}

  // Call once a step. A value that is not finite stands out too, and is not remembered.
  bool stands_out(double value) {
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
  static constexpr int64_t kLearned = 20; // values before the first judgement, and the memory's length
  const double times_;
  int64_t seen_ = 0;
  double mean_ = 0, variance_ = 0;
};

} // namespace gpt2
