#include "kernels/vector_math.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace gpt2;

TEST_CASE("vector_exp stays within 1.2e-7 of the double exp") {
  double worst = 0;
  for (float x = -87.3f; x < 88.3f; x += 1e-4f) {
    const double want = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::fabs(static_cast<double>(vector_exp(x)) - want) / want);
  }
  for (float x = 1e-12f; x < 1; x *= 1.01f) {
    for (float signed_x : {x, -x}) {
      const double want = std::exp(static_cast<double>(signed_x));
      worst = std::max(worst, std::fabs(static_cast<double>(vector_exp(signed_x)) - want) / want);
    }
  }
  CHECK(worst < 1.2e-7);
}

TEST_CASE("vector_exp at the ends of its range") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(vector_exp(0.0f) == 1.0f);
  CHECK(vector_exp(-0.0f) == 1.0f);
  for (float x : {-87.5f, -88.0f, -104.0f, -1e4f, -1e30f, -kInfinity}) CHECK(vector_exp(x) == 0.0f);
  for (float x : {89.0f, 1e4f, 1e30f, kInfinity}) CHECK(vector_exp(x) == kInfinity);
  CHECK(std::isnan(vector_exp(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(vector_exp(-std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("vector_max finds the maximum at any place and passes NaNs over") {
  for (int count : {1, 2, 7, 16, 33}) {
    for (int place = 0; place < count; ++place) {
      std::vector<float> x(static_cast<size_t>(count), -5.0f);
      x[static_cast<size_t>(place)] = -3.0f;
      CHECK(vector_max(x.data(), count) == -3.0f);
    }
  }
  const std::vector<float> x = {1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f, -1.0f};
  CHECK(vector_max(x.data(), 4) == 2.0f);
  CHECK(vector_max(x.data(), 0) == -std::numeric_limits<float>::infinity());
}
