#include "tools/compare/seed_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gpt2 {
namespace {

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

} // namespace

Estimate estimate(const std::vector<double>& values) {
  Estimate out{kMissing, kMissing, kMissing, 0};
  double sum = 0, squares = 0;
  for (const double value : values)
    if (std::isfinite(value)) sum += value, ++out.count;
  if (out.count == 0) return out;
  const double count = static_cast<double>(out.count);
  out.mean = sum / count;
  if (out.count == 1) return out;
  for (const double value : values)
    if (std::isfinite(value)) squares += (value - out.mean) * (value - out.mean);
  out.deviation = std::sqrt(squares / (count - 1));
  out.error = out.deviation / std::sqrt(count);
  return out;
}

Estimate difference(const std::vector<double>& from, const std::vector<double>& to) {
  const Estimate a = estimate(from), b = estimate(to);
  const int64_t count = std::min(a.count, b.count);
  const double error = std::hypot(a.error, b.error);
  return {b.mean - a.mean, error, error * std::sqrt(static_cast<double>(count)), count};
}

double coverage_of_two_errors(int64_t count) {
  if (count < 2) return 0;
  const double freedom = static_cast<double>(count) - 1;
  const double scale = std::exp(std::lgamma((freedom + 1) / 2) - std::lgamma(freedom / 2)) / std::sqrt(freedom * M_PI);
  constexpr int kParts = 400; // Simpson's rule from -2 to 2
  double sum = 0;
  for (int i = 0; i <= kParts; ++i) {
    const double t = -2 + 4.0 * i / kParts, weight = i == 0 || i == kParts ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * std::pow(1 + t * t / freedom, -(freedom + 1) / 2);
  }
  return scale * sum * 4 / kParts / 3;
}

GapVerdict judge(const Estimate& gap, double margin) {
  if (!std::isfinite(gap.mean)) return {Outcome::no_number};
  if (!std::isfinite(gap.error)) return {Outcome::one_seed};
  const double size = std::abs(gap.mean), reach = 2 * gap.error;
  if (size + reach <= margin) return {Outcome::within};
  if (size > reach && size > margin) return {gap.mean > 0 ? Outcome::worse : Outcome::better};
  // Inside the margin 2 SE must shrink to the distance to the margin, outside to the gap itself.
  const double room = size < margin ? margin - size : size;
  const double needed = room > 0 ? std::ceil(std::pow(2 * gap.deviation / room, 2)) : INFINITY;
  return {Outcome::unclear, std::max(needed, static_cast<double>(gap.count) + 1)};
}

} // namespace gpt2
