#include "kernels/cross_entropy.h"

#include <doctest/doctest.h>

#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

struct Shape {
  int rows, vocab, padded_vocab;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {5, 101, 128}, {3, 1000, 1000}, {2, 50257, 50304}};

std::vector<int32_t> spread_targets(const Shape& s) {
  std::vector<int32_t> targets(static_cast<size_t>(s.rows));
  for (int i = 0; i < s.rows; ++i)
    targets[static_cast<size_t>(i)] = (i * 37 + s.vocab - 1) % s.vocab; // row 0: the last
  return targets;
}

double log_sum_exp(const double* x, int count) {
  const double highest = *std::max_element(x, x + count);
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += std::exp(x[i] - highest);
  return highest + std::log(sum);
}

double reference_loss(const std::vector<double>& logits, const std::vector<int32_t>& targets, const Shape& s) {
  double loss = 0;
  for (int i = 0; i < s.rows; ++i) {
    const double* row = logits.data() + static_cast<int64_t>(i) * s.padded_vocab;
    loss += log_sum_exp(row, s.vocab) - row[targets[static_cast<size_t>(i)]];
  }
  return loss;
}

// Padding holds what must not matter: numbers far above the logits.
std::vector<float> padded_logits(const Shape& s, float deviation) {
  auto logits = random_tensor(static_cast<int64_t>(s.rows) * s.padded_vocab, 1, deviation);
  for (size_t i = 0; i < logits.size(); ++i)
    if (static_cast<int>(i) % s.padded_vocab >= s.vocab) logits[i] = 1e30f;
  return logits;
}

} // namespace

TEST_CASE("losses and gradient agree with double precision; padding is left out") {
  Cpu cpu;
  for (const Shape& s : kShapes) {
    for (float deviation : {1.0f, 30.0f}) {
      const auto targets = spread_targets(s);
      auto logits = padded_logits(s, deviation);
      const auto exact = as_doubles(logits);
      std::vector<double> want_loss(static_cast<size_t>(s.rows)), want_gradient(logits.size());
      for (int i = 0; i < s.rows; ++i) {
        const int64_t start = static_cast<int64_t>(i) * s.padded_vocab;
        const int32_t target = targets[static_cast<size_t>(i)];
        const double normalizer = log_sum_exp(exact.data() + start, s.vocab);
        want_loss[static_cast<size_t>(i)] = normalizer - exact[static_cast<size_t>(start + target)];
        for (int v = 0; v < s.vocab; ++v)
          want_gradient[static_cast<size_t>(start + v)] =
              std::exp(exact[static_cast<size_t>(start + v)] - normalizer) - (v == target);
      }
      std::vector<float> losses(static_cast<size_t>(s.rows), kNan);
      cross_entropy(cpu, {logits.data(), losses.data(), targets.data(), s.rows, s.vocab, s.padded_vocab, true});
      CHECK(max_error(losses, want_loss) < 3e-7);
      CHECK(max_error(logits, want_gradient) < 1e-6);
      for (size_t i = 0; i < logits.size(); ++i)
        if (static_cast<int>(i) % s.padded_vocab >= s.vocab) REQUIRE(logits[i] == 0.0f);
    }
  }
}

TEST_CASE("gradient is the derivative of the summed loss") {
  Cpu cpu;
  const Shape s = {4, 37, 40};
  const auto targets = spread_targets(s);
  auto logits = padded_logits(s, 2.0f);
  for (float& x : logits) x = std::min(x, 1e3f); // a finite difference of 1e30 would be noise
  const auto want =
      central_differences(as_doubles(logits), [&](const auto& x) { return reference_loss(x, targets, s); });
  std::vector<float> losses(4);
  cross_entropy(cpu, {logits.data(), losses.data(), targets.data(), s.rows, s.vocab, s.padded_vocab, true});
  CHECK(max_error(logits, want) < 1e-6);
}

TEST_CASE("ignored targets cost nothing and get zero gradient; without write_gradient the logits stay") {
  Cpu cpu;
  const Shape s = {3, 101, 128};
  const std::vector<int32_t> targets = {5, -1, 100};
  const auto before = padded_logits(s, 1.0f);
  auto logits = before;
  std::vector<float> losses(3, kNan), losses_again(3, kNan);
  cross_entropy(cpu, {logits.data(), losses.data(), targets.data(), s.rows, s.vocab, s.padded_vocab, false});
  CHECK(same_bits(logits, before));
  CHECK(losses[0] > 0);
  CHECK(losses[1] == 0);
  CHECK(losses[2] > 0);
  cross_entropy(cpu, {logits.data(), losses_again.data(), targets.data(), s.rows, s.vocab, s.padded_vocab, true});
  CHECK(same_bits(losses, losses_again));
  for (size_t i = 128; i < 256; ++i) REQUIRE(logits[i] == 0.0f);
  CHECK(logits[5] < 0);
  CHECK(logits[256 + 100] < 0);
}

TEST_CASE("a NaN or infinite logit makes the loss of its row NaN, and of no other") {
  Cpu cpu;
  for (float poison : {kNan, std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits(2 * 7, 0.5f), losses(2);
    logits[3] = poison;
    const std::vector<int32_t> targets = {1, 1};
    cross_entropy(cpu, {logits.data(), losses.data(), targets.data(), 2, 7, 7, true});
    CHECK_FALSE(std::isfinite(losses[0]));
    CHECK(losses[1] == doctest::Approx(std::log(7.0)));
  }
}
