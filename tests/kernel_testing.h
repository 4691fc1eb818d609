// What the kernel tests share: random tensors, the error of a result, and runs with another number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace gpt2::testing {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> random_tensor(int64_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

inline std::vector<double> as_doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// The largest difference, relative to the largest expected magnitude. A NaN or a wrong size is an infinite error.
template <class A, class B>
double max_error(const std::vector<A>& got, const std::vector<B>& want) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (got.size() != want.size()) return kInfinity;
  double largest = 0, difference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double distance = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(distance < kInfinity)) return kInfinity;
    difference = std::max(difference, distance);
    largest = std::max(largest, std::fabs(static_cast<double>(want[i])));
  }
  return difference == 0 ? 0 : difference / largest;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// d objective / d x[i] by central differences, for every i that is a multiple of `stride`.
inline std::vector<double> central_differences(std::vector<double> x,
                                               const std::function<double(const std::vector<double>&)>& objective,
                                               size_t stride = 1, double step = 1e-5) {
  std::vector<double> gradient;
  for (size_t i = 0; i < x.size(); i += stride) {
    const double center = x[i];
    x[i] = center + step;
    const double above = objective(x);
    x[i] = center - step;
    const double below = objective(x);
    x[i] = center;
    gradient.push_back((above - below) / (2 * step));
  }
  return gradient;
}

template <class A>
std::vector<A> every(const std::vector<A>& x, size_t stride) {
  std::vector<A> picked;
  for (size_t i = 0; i < x.size(); i += stride) picked.push_back(x[i]);
  return picked;
}

inline double dot(const std::vector<double>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * static_cast<double>(b[i]);
  return sum;
}

// Calls body(), whose result is a tensor, with 1 and with 3 threads: do both give the same bits?
inline bool same_for_any_threads(const std::function<std::vector<float>()>& body) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::vector<float> single = body();
  omp_set_num_threads(3);
  const std::vector<float> several = body();
  omp_set_num_threads(threads);
  return same_bits(single, several);
}

} // namespace gpt2::testing
