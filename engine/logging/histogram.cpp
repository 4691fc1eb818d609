#include "engine/logging/histogram.h"

#include <algorithm>
#include <array>
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
class BucketTable {
 public:
  BucketTable() {
    const std::span<const double> limits = histogram_limits();
    for (uint32_t cell = 0; cell < kCells; ++cell) {
      const float first = std::bit_cast<float>(cell << kShift);
      const float last = std::bit_cast<float>((cell << kShift) | ((1u << kShift) - 1));
      if (!std::isfinite(first)) {
        cells_[cell] = {static_cast<int32_t>(limits.size()), std::numeric_limits<float>::quiet_NaN()};
        continue;
      }
      const double lowest = std::min(first, last); // the bit order of negative floats is reversed
      const auto limit = std::upper_bound(limits.begin(), limits.end(), lowest);
      cells_[cell] = {static_cast<int32_t>(limit - limits.begin()), round_up(*limit)};
    }
  }

  // The index of the first limit above `value`; histogram_limits().size() for NaN and infinity.
  int32_t operator()(float value) const {
    const Cell& cell = cells_[std::bit_cast<uint32_t>(value) >> kShift];
    return cell.bucket + (value >= cell.next_from ? 1 : 0);
  }

 private:
  static constexpr int kShift = 19;
  static constexpr uint32_t kCells = 1u << (32 - kShift);
  struct Cell {
    int32_t bucket;  // of the lowest value in the cell
    float next_from; // first value of the next bucket; NaN: none in this cell
  };

  // The smallest float >= limit: comparing a float with it equals comparing with the double.
  static float round_up(double limit) {
    if (limit > std::numeric_limits<float>::max()) return std::numeric_limits<float>::infinity();
    if (limit < std::numeric_limits<float>::lowest()) return std::numeric_limits<float>::lowest();
    const float nearest = static_cast<float>(limit);
    return nearest < limit ? std::nextafter(nearest, std::numeric_limits<float>::infinity()) : nearest;
  }

  std::array<Cell, kCells> cells_; // 64 KiB; one tensor touches few of them
};

void add_values(Histogram& histogram, std::span<const float> values, const BucketTable& bucket_of) {
  histogram.buckets.assign(histogram_limits().size() + 1, 0); // the last one counts non-finite values
  float lowest = std::numeric_limits<float>::infinity(), highest = -lowest;
  double sum = 0, sum_squares = 0;
  for (const float value : values) {
    ++histogram.buckets[static_cast<size_t>(bucket_of(value))];
    const float finite = std::isfinite(value) ? value : 0.0f;
    sum += finite;
    sum_squares += static_cast<double>(finite) * finite;
    if (std::isfinite(value)) {
      lowest = std::min(lowest, value);
      highest = std::max(highest, value);
    }
  }
  histogram.min = lowest;
  histogram.max = highest;
  histogram.sum = sum;
  histogram.sum_squares = sum_squares;
  histogram.nonfinite = histogram.buckets.back();
  histogram.count = static_cast<int64_t>(values.size()) - histogram.nonfinite;
  histogram.buckets.pop_back();
}

void merge(Histogram& into, const Histogram& part) {
  into.min = std::min(into.min, part.min);
  into.max = std::max(into.max, part.max);
  into.count += part.count;
  into.nonfinite += part.nonfinite;
  into.sum += part.sum;
  into.sum_squares += part.sum_squares;
  for (size_t i = 0; i < into.buckets.size(); ++i) into.buckets[i] += part.buckets[i];
}

} // namespace

std::span<const double> histogram_limits() {
  static const std::vector<double> limits = make_limits();
  return limits;
}

Histogram make_histogram(std::span<const float> values) {
  static const BucketTable bucket_of;
  constexpr size_t kPart = 1 << 20; // fixed parts, merged in order: sums do not depend on the number of cores
  const size_t part_count = std::max<size_t>(1, (values.size() + kPart - 1) / kPart);
  std::vector<Histogram> parts(part_count);
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < part_count; ++i) {
    const size_t begin = i * kPart;
    add_values(parts[i], values.subspan(begin, std::min(kPart, values.size() - begin)), bucket_of);
  }
  Histogram histogram = std::move(parts.front());
  for (size_t i = 1; i < part_count; ++i) merge(histogram, parts[i]);
  if (histogram.count == 0) histogram.min = histogram.max = 0;
  return histogram;
}

} // namespace gpt2
