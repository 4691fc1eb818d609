// Histograms with TensorFlow's default buckets: limits grow by a factor of 1.1 from 1e-12 to 1e20 on both sides of
// zero, which suits weights and gradients of any magnitude.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gpt2 {

// The upper limits (exclusive) of all buckets, ascending; the last is the largest double.
std::span<const double> histogram_limits();

struct Histogram { // of the finite values
  double min = 0, max = 0;
  int64_t count = 0;
  double sum = 0, sum_squares = 0;
  std::vector<int64_t> buckets; // one per limit
};

Histogram make_histogram(std::span<const float> values);

} // namespace gpt2
