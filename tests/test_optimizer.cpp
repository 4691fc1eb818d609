#include "kernels/optimizer.h"

#include <doctest/doctest.h>

#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

StepScalars step_of(double loss_sum, double norm_square, int64_t tokens) {
  StepScalars scalars{};
  scalars.sums = {.loss = loss_sum, .tokens = static_cast<double>(tokens), .norm_square = norm_square, .stops = 0};
  return scalars;
}

constexpr float kLr = 0.01f, kBeta1 = 0.9f, kBeta2 = 0.95f, kEps = 1e-8f, kDecay = 0.1f;

struct Training {
  std::vector<float> master, m, v, grad;
  std::vector<uint8_t> decay_mask;
  StepScalars scalars{};
  GuardState guard{};

  explicit Training(int blocks)
      : master(random_tensor(blocks * 256, 1)),
        m(master.size()),
        v(master.size()),
        grad(master.size()),
        decay_mask(static_cast<size_t>(blocks)) {
    for (size_t i = 0; i < decay_mask.size(); ++i) decay_mask[i] = i % 3 != 1;
  }
  AdamW<float> op(float* copy) {
    return {master.data(), copy,        m.data(),
            v.data(),      grad.data(), decay_mask.data(),
            &scalars,      &guard,      static_cast<int64_t>(master.size()),
            kLr,           kBeta1,      kBeta2,
            kEps,          kDecay};
  }
};

} // namespace

TEST_CASE("accumulate_loss sums over micro-batches and counts only real targets") {
  Cpu cpu;
  StepScalars scalars = step_of(10.0, 0, 5);
  const std::vector<float> losses = {1.5f, 0.0f, 2.25f};
  const std::vector<int32_t> targets = {3, -1, 0};
  accumulate_loss(cpu, {&scalars.sums, losses.data(), targets.data(), 3});
  CHECK(scalars.sums.loss == 13.75);
  CHECK(scalars.sums.tokens == 7);
}

TEST_CASE("gradient_norm sums squares in double over any size, with the same bits for any number of threads") {
  Cpu cpu;
  for (int64_t count : {1, 255, 65'536, 200'003}) {
    const auto grad = random_tensor(count, 1, 1e15f); // squares overflow no double
    double want = 0;
    for (float g : grad) want += static_cast<double>(g) * static_cast<double>(g);
    StepScalars scalars = step_of(0, 123.0, 1); // of the slices before
    gradient_norm(cpu, {&scalars.sums, grad.data(), count});
    CHECK(scalars.sums.norm_square == doctest::Approx(want + 123.0).epsilon(1e-12));
    CHECK(same_for_any_threads([&] {
      StepSums sums{};
      gradient_norm(cpu, {&sums, grad.data(), count});
      std::vector<float> bits(2);
      std::memcpy(bits.data(), &sums.norm_square, sizeof(double));
      return bits;
    }));
  }
  auto grad = random_tensor(100'000, 1);
  grad[77'777] = kNan;
  StepScalars scalars{};
  gradient_norm(cpu, {&scalars.sums, grad.data(), 100'000});
  CHECK(std::isnan(scalars.sums.norm_square));
}

TEST_CASE("judge turns sums into means, and clips only above the limit") {
  Cpu cpu;
  GuardState guard{};
  StepScalars scalars = step_of(24.0, 64.0, 4); // norm of the mean gradient: 8 / 4
  judge(cpu, {&scalars, &guard, {}, 0.0f});
  CHECK(scalars.loss == 6.0f);
  CHECK(scalars.grad_norm == 2.0f);
  CHECK(scalars.grad_scale == 0.25f);
  CHECK(scalars.verdict == Verdict::applied);
  CHECK(guard.adam_step == 1);
  judge(cpu, {&scalars, &guard, {}, 0.5f});
  CHECK(scalars.grad_norm == 2.0f); // before clipping
  CHECK(scalars.grad_scale == 0.0625f);
  judge(cpu, {&scalars, &guard, {}, 2.0f});
  CHECK(scalars.grad_scale == 0.25f);
  CHECK(guard.adam_step == 3);
}

TEST_CASE("judge skips what is not finite, outliers, and a step without a single target") {
  Cpu cpu;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  GuardState guard{};
  for (StepScalars scalars : {step_of(kInfinity, 1, 4), step_of(4, kInfinity, 4), step_of(std::nan(""), 1, 4),
                              step_of(4, std::nan(""), 4), step_of(0, 0, 0)}) {
    judge(cpu, {&scalars, &guard, {}, 1.0f});
    CHECK(scalars.verdict == Verdict::skipped_nonfinite);
    CHECK(scalars.grad_scale == 0.0f);
  }
  CHECK(guard.adam_step == 0);
  CHECK(guard.skipped_in_a_row == 5);

  for (int i = 0; i < GuardState::kMinimum; ++i) {
    StepScalars scalars = step_of(4.0 + 0.1 * (i % 2), 1.0 + 0.1 * (i % 2), 1);
    judge(cpu, {&scalars, &guard, {6.0f, 6.0f}, 0.0f});
    REQUIRE(scalars.verdict == Verdict::applied);
  }
  StepScalars high_loss = step_of(40, 1, 1), high_norm = step_of(4, 100, 1);
  judge(cpu, {&high_loss, &guard, {6.0f, 6.0f}, 0.0f});
  judge(cpu, {&high_norm, &guard, {6.0f, 6.0f}, 0.0f});
  CHECK(high_loss.verdict == Verdict::skipped_loss_z);
  CHECK(high_norm.verdict == Verdict::skipped_norm_z);
  CHECK(guard.adam_step == GuardState::kMinimum);
  CHECK(guard.skipped_in_a_row == 2);
}

TEST_CASE("AdamW follows the double-precision recurrence for 20 steps") {
  Cpu cpu;
  Training training(5);
  std::vector<double> weights = as_doubles(training.master), m(weights.size()), v(weights.size());
  std::vector<float> copy(weights.size(), kNan);
  for (int t = 1; t <= 20; ++t) {
    training.grad = random_tensor(static_cast<int64_t>(weights.size()), static_cast<uint32_t>(100 + t), 512.0f);
    training.scalars.grad_scale = 1.0f / 512;
    training.guard.adam_step = t;
    adamw(cpu, training.op(copy.data()));
    for (size_t i = 0; i < weights.size(); ++i) {
      const double g = static_cast<double>(training.grad[i]) / 512;
      m[i] = double{kBeta1} * m[i] + (1 - double{kBeta1}) * g;
      v[i] = double{kBeta2} * v[i] + (1 - double{kBeta2}) * g * g;
      const double m_hat = m[i] / (1 - std::pow(double{kBeta1}, t)), v_hat = v[i] / (1 - std::pow(double{kBeta2}, t));
      const double decay = training.decay_mask[i / 256] != 0 ? double{kDecay} : 0.0;
      weights[i] -= double{kLr} * (m_hat / (std::sqrt(v_hat) + double{kEps}) + decay * weights[i]);
    }
  }
  CHECK(max_error(training.master, weights) < 1e-6);
  CHECK(max_error(training.m, m) < 1e-6);
  CHECK(max_error(training.v, v) < 1e-6);
  CHECK(same_bits(copy, training.master));
}

TEST_CASE("a zero gradient moves nothing but decayed weights") {
  Cpu cpu;
  Training training(2); // the mask decays block 0 only
  const auto before = training.master;
  training.scalars.grad_scale = 1.0f;
  training.guard.adam_step = 1;
  adamw(cpu, training.op(nullptr));
  for (size_t i = 0; i < before.size(); ++i) {
    if (i < 256) {
      REQUIRE(training.master[i] == doctest::Approx(before[i] * (1 - kLr * kDecay)).epsilon(1e-6));
    } else {
      REQUIRE(training.master[i] == before[i]);
    }
  }
}

TEST_CASE("a skipped step leaves weights and moments untouched, whatever the gradient holds") {
  Cpu cpu;
  for (Verdict verdict : {Verdict::skipped_nonfinite, Verdict::skipped_loss_z, Verdict::skipped_norm_z}) {
    Training training(3);
    training.m = random_tensor(3 * 256, 2);
    training.v = random_tensor(3 * 256, 3);
    std::fill(training.grad.begin(), training.grad.end(), kNan);
    training.scalars.verdict = verdict;
    training.scalars.grad_scale = kNan;
    training.guard.adam_step = 1;
    const Training before = training;
    std::vector<float> copy(training.master.size(), 7.0f);
    adamw(cpu, training.op(copy.data()));
    CHECK(same_bits(training.master, before.master));
    CHECK(same_bits(training.m, before.m));
    CHECK(same_bits(training.v, before.v));
    CHECK(same_bits(copy, std::vector<float>(copy.size(), 7.0f)));
  }
}
