#include "kernels/gelu.h"

#include <doctest/doctest.h>

#include <bit>
#include <numbers>

#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

// As PyTorch's gelu(approximate="tanh") has it. 1 + tanh(u) = 2 / (1 + e^-2u) cancels for u < -18 even in double.
double reference_gelu(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(u));
}

double reference_slope(double x) { return (reference_gelu(x + 1e-5) - reference_gelu(x - 1e-5)) / 2e-5; }

std::vector<float> grid(float from, float to, int count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    x[static_cast<size_t>(i)] = from + (to - from) * static_cast<float>(i) / static_cast<float>(count);
  return x;
}

} // namespace

TEST_CASE("forward keeps its relative accuracy over the whole range, negative tail included") {
  Cpu cpu;
  const auto in = grid(-5.0f, 12.0f, 100'003);
  std::vector<float> out(in.size(), kNan);
  gelu_forward(cpu, {out.data(), in.data(), 1, static_cast<int>(in.size())});
  double worst = 0, worst_tail = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const double want = reference_gelu(static_cast<double>(in[i]));
    const double error =
        want == 0 ? std::fabs(static_cast<double>(out[i])) : std::fabs(out[i] - want) / std::fabs(want);
    (in[i] < -2 ? worst_tail : worst) = std::max(in[i] < -2 ? worst_tail : worst, error);
  }
  CHECK(worst < 1e-6);
  CHECK(worst_tail < 5e-6); // the exponent 2u has grown to 20, and its rounding with it
}

TEST_CASE("forward at the extremes") {
  Cpu cpu;
  const std::vector<float> in = {0.0f, -20.0f, -1e15f, 20.0f, 1e15f, kNan};
  std::vector<float> out(in.size());
  gelu_forward(cpu, {out.data(), in.data(), 2, 3});
  CHECK(out[0] == 0.0f);
  CHECK(std::fabs(out[1]) < 1e-30f);
  CHECK(out[2] == 0.0f);
  CHECK(out[3] == 20.0f);
  CHECK(out[4] == 1e15f);
  CHECK(std::isnan(out[5]));
}

TEST_CASE("the slope is a number over the whole range of floats, and NaN of what is none") {
  Cpu cpu;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> in = {kNan, kInfinity, -kInfinity};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) { // 0: zero and the denormals
    for (const uint32_t fraction : {0u, 1u, 0x2AAAAAu, 0x7FFFFFu}) {
      const float x = std::bit_cast<float>(exponent << 23 | fraction);
      in.push_back(x);
      in.push_back(-x);
    }
  }
  const std::vector<float> ones(in.size(), 1.0f);
  std::vector<float> slope(in.size());
  gelu_backward(cpu, {slope.data(), nullptr, ones.data(), in.data(), 1, static_cast<int>(in.size())});
  size_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const double x = static_cast<double>(in[i]);
    if (i < 3) {
      wrong += !std::isnan(slope[i]);
    } else if (std::fabs(x) >= 16) {
      wrong += slope[i] != (x > 0 ? 1.0f : 0.0f);
    } else {
      wrong += !(std::fabs(static_cast<double>(slope[i]) - reference_slope(x)) < 1e-6);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("backward: slope times dout, and its column sums added to dbias") {
  Cpu cpu;
  for (const auto& [rows, cols] : {std::pair{1, 1}, std::pair{5, 48}, std::pair{7, 67}, std::pair{33, 192}}) {
    const auto in = random_tensor(rows * cols, 1, 2.0f), dout = random_tensor(rows * cols, 2);
    const auto start = random_tensor(cols, 3);
    auto dbias = start;
    std::vector<float> din(in.size(), kNan);
    gelu_backward(cpu, {din.data(), dbias.data(), dout.data(), in.data(), rows, cols});

    std::vector<double> want(in.size()), want_dbias = as_doubles(start);
    for (size_t i = 0; i < in.size(); ++i) {
      want[i] = dout[i] * reference_slope(static_cast<double>(in[i]));
      want_dbias[i % static_cast<size_t>(cols)] += want[i];
    }
    CHECK(max_error(din, want) < 1e-6);
    CHECK(max_error(dbias, want_dbias) < 1e-6);

    auto in_place = dout;
    gelu_backward(cpu, {in_place.data(), nullptr, in_place.data(), in.data(), rows, cols});
    CHECK(same_bits(in_place, din));
  }
}

TEST_CASE("the same bits for any number of threads") {
  Cpu cpu;
  const int rows = 50, cols = 1000;
  const auto in = random_tensor(rows * cols, 1), dout = random_tensor(rows * cols, 2);
  CHECK(same_for_any_threads([&] {
    std::vector<float> out(in.size());
    gelu_forward(cpu, {out.data(), in.data(), rows, cols});
    return out;
  }));
  CHECK(same_for_any_threads([&] {
    std::vector<float> din(in.size()), dbias(static_cast<size_t>(cols));
    gelu_backward(cpu, {din.data(), dbias.data(), dout.data(), in.data(), rows, cols});
    return dbias;
  }));
}
