#include "engine/logging/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace gpt2 {
namespace {

constexpr double kSmallest = 1e-12, kLargest = 1e20, kGrowth = 1.1;

std::vector<double> make_limits() {
  std::vector<double> positive;
  for (double limit = kSmallest; limit < kLargest; limit *= kGrowth) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());

  std::vector<double> limits;
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) limits.push_back(-*limit);
  limits.push_back(0.0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

// The top 13 bits of a float (sign, exponent, 4 of mantissa) select a cell of relative width at most 1/16. Limits are a
// factor of 1.1 apart, so a cell contains at most one: a table lookup and one comparison find the bucket.
constexpr int kShift = 19;
struct Cell {
  uint32_t bucket = 0; // of the lowest value in the cell
  double limit = 0;    // of that bucket: larger values are in the next one
};

std::vector<Cell> make_cells() { // 128 KiB; one tensor touches few of them
  const std::span<const double> limits = histogram_limits();
  std::vector<Cell> cells(1u << (32 - kShift));
  for (uint32_t i = 0; i < cells.size(); ++i) {
    const float first = std::bit_cast<float>(i << kShift);
    const float last = std::bit_cast<float>((i << kShift) | ((1u << kShift) - 1));
    if (!std::isfinite(first)) continue;
    const double lowest = std::min(first, last); // the bit order of negative floats is reversed
    const auto limit = std::upper_bound(limits.begin(), limits.end(), lowest);
    cells[i] = {static_cast<uint32_t>(limit - limits.begin()), *limit};
  }
  return cells;
}

} // namespace

std::span<const double> histogram_limits() {
  static const std::vector<double> limits = make_limits();
  return limits;
}

Histogram make_histogram(std::span<const float> values) {
  static const std::vector<Cell> cells = make_cells();
  Histogram histogram;
  histogram.buckets.assign(histogram_limits().size(), 0);
  float lowest = std::numeric_limits<float>::infinity(), highest = -lowest;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    ++histogram.count;
    const Cell& cell = cells[std::bit_cast<uint32_t>(value) >> kShift];
    ++histogram.buckets[cell.bucket + (value >= cell.limit ? 1 : 0)];
    histogram.sum += value;
    histogram.sum_squares += static_cast<double>(value) * value;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  if (histogram.count > 0) histogram.min = lowest, histogram.max = highest;
  return histogram;
}

} // namespace gpt2
