// The end of a step on the GPU against the CPU: loss, norm, verdict, AdamW.
#include "kernels/optimizer.h"

#include <cstring>

#include "engine/model/batch.h"
#include "kernels/adamw_segments.h"
#include "tests/gpu/gpu_test.h"

namespace gpt2 {
namespace {

constexpr double kFp32Tolerance = 1e-5; // FP32 arithmetic in another order, powf against a power in double

template <class T>
bool same_bytes(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

StepScalars fresh_scalars() {
  StepScalars scalars;
  std::memset(static_cast<void*>(&scalars), 0, sizeof scalars); // padding included: compared as bytes
  return scalars;
}

GuardState fresh_guard() {
  GuardState guard;
  std::memset(static_cast<void*>(&guard), 0, sizeof guard);
  return guard;
}

} // namespace

TEST_CASE("losses add up over micro-batches; ignored targets do not count") {
  TestDevice device;
  for (const int64_t rows : {1, 7, 1000, 70001}) {
    CAPTURE(rows);
    std::vector<int32_t> targets(static_cast<size_t>(rows), 5);
    std::vector<float> losses(targets.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      losses[i] = 3.0f + static_cast<float>(Rng(1).normal(i));
      if (i % 5 == 3) targets[i] = kIgnoredTarget, losses[i] = 0;
    }
    StepScalars expected = fresh_scalars();
    DeviceBuffer<StepScalars> scalars(std::vector<StepScalars>{expected});
    DeviceBuffer<float> gpu_losses(losses);
    DeviceBuffer<int32_t> gpu_targets(targets);
    for (int micro_step = 0; micro_step < 3; ++micro_step) {
      accumulate_loss(device.cpu, LossAccumulate{&expected.sums, losses.data(), targets.data(), rows});
      accumulate_loss(device.cuda, LossAccumulate{&scalars.get()->sums, gpu_losses, gpu_targets, rows});
    }
    const StepScalars actual = scalars.download()[0];
    CHECK(actual.sums.tokens == expected.sums.tokens);
    CHECK(actual.sums.loss == doctest::Approx(expected.sums.loss).epsilon(1e-12)); // sums in double
  }
}

TEST_CASE("the gradient norm is right, repeats its bits, and shows a NaN") {
  TestDevice device;
  for (const int64_t count : tested<int64_t>({256, 256 * 777, 256 * 4099, 256 * 20001})) {
    CAPTURE(count);
    std::vector<float> grad = random_values(static_cast<size_t>(count), 1, 100.0f);
    StepScalars expected = fresh_scalars();
    gradient_norm(device.cpu, GradientNorm{&expected.sums, grad.data(), count});
    DeviceBuffer<float> gpu_grad(grad);
    DeviceBuffer<StepScalars> scalars(std::vector<StepScalars>{fresh_scalars()});
    StepSums* const sums = &scalars.get()->sums;
    gradient_norm(device.cuda, GradientNorm{sums, gpu_grad, count});
    const double first = scalars.download()[0].sums.norm_square;
    CHECK(first == doctest::Approx(expected.sums.norm_square).epsilon(kFp32Tolerance));
    gradient_norm(device.cuda, GradientNorm{sums, gpu_grad, count}); // slices add up
    CHECK(scalars.download()[0].sums.norm_square == 2 * first);
    grad.back() = std::numeric_limits<float>::quiet_NaN();
    gpu_grad.upload(grad);
    gradient_norm(device.cuda, GradientNorm{sums, gpu_grad, count});
    CHECK(std::isnan(scalars.download()[0].sums.norm_square));
  }
}

// Forty ordinary steps, then one of every kind that must be skipped, and an ordinary one.
TEST_CASE("verdicts, windows and gradient scales are the CPU's, bit for bit") {
  TestDevice device;
  struct Step {
    double loss_sum, norm_square;
    int64_t tokens;
    Verdict verdict;
  };
  std::vector<Step> steps;
  for (uint64_t i = 0; i < 40; ++i) {
    steps.push_back({1000 * (5 + 0.1 * Rng(1).normal(i)), 1e6 * (1 + 0.1 * Rng(2).uniform(i)), 1000, Verdict::applied});
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  steps.push_back({nan, 1e6, 1000, Verdict::skipped_nonfinite});
  steps.push_back({5000, nan, 1000, Verdict::skipped_nonfinite});
  steps.push_back({0, 0, 0, Verdict::skipped_nonfinite}); // not a single target
  steps.push_back({50000, 1e6, 1000, Verdict::skipped_loss_z});
  steps.push_back({5000, 1e9, 1000, Verdict::skipped_norm_z});
  steps.push_back({5000, 1e6, 1000, Verdict::applied});

  GuardState expected_guard = fresh_guard();
  DeviceBuffer<GuardState> guard(std::vector<GuardState>{expected_guard});
  DeviceBuffer<StepScalars> scalars(1);
  for (const Step& step : steps) {
    StepScalars expected = fresh_scalars();
    expected.sums = {
        .loss = step.loss_sum, .tokens = static_cast<double>(step.tokens), .norm_square = step.norm_square, .stops = 0};
    scalars.upload({expected});
    const VerdictLimits limits{.loss_z = 8, .norm_z = 8};
    judge(device.cpu, JudgeStep{&expected, &expected_guard, limits, 0.5f});
    judge(device.cuda, JudgeStep{scalars, guard, limits, 0.5f});
    const StepScalars actual = scalars.download()[0];
    CHECK(actual.verdict == step.verdict);
    CHECK(expected.verdict == step.verdict);
    CHECK(actual.grad_scale == expected.grad_scale);
    if (step.verdict == Verdict::applied) {
      CHECK(actual.loss == expected.loss);
      CHECK(actual.grad_norm == expected.grad_norm);
    }
    CHECK(same_bytes(guard.download()[0], expected_guard));
  }
  CHECK(expected_guard.adam_step == 41);
}

namespace {

struct AdamState { // the same on both sides
  explicit AdamState(int64_t count)
      : count(count),
        master(random_values(static_cast<size_t>(count), 1)),
        m(random_values(static_cast<size_t>(count), 2, 0.1f)),
        v(random_values(static_cast<size_t>(count), 3, 0.01f, 0.1f)),
        mask(static_cast<size_t>(count / 256)),
        gpu_master(master),
        gpu_m(m),
        gpu_v(v),
        gpu_weights(static_cast<size_t>(count)) {
    for (float& x : v) x = std::fabs(x);
    gpu_v.upload(v);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<uint8_t>(i % 3 == 1);
  }

  int64_t count;
  std::vector<float> master, m, v;
  std::vector<uint8_t> mask;
  DeviceBuffer<float> gpu_master, gpu_m, gpu_v;
  DeviceBuffer<bf16> gpu_weights;
};

void step_both(TestDevice& device, AdamState& s, const std::vector<float>& grad, const StepScalars& scalars,
               const GuardState& guard) {
  DeviceBuffer<float> gpu_grad(grad);
  DeviceBuffer<uint8_t> mask(s.mask);
  DeviceBuffer<StepScalars> gpu_scalars(std::vector<StepScalars>{scalars});
  DeviceBuffer<GuardState> gpu_guard(std::vector<GuardState>{guard});
  const float lr = 1e-2f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, decay = 0.1f;
  adamw(device.cpu, AdamW<float>{s.master.data(), nullptr, s.m.data(), s.v.data(), grad.data(), s.mask.data(), &scalars,
                                 &guard, s.count, lr, beta1, beta2, eps, decay});
  adamw(device.cuda, AdamW<bf16>{s.gpu_master, s.gpu_weights, s.gpu_m, s.gpu_v, gpu_grad, mask, gpu_scalars, gpu_guard,
                                 s.count, lr, beta1, beta2, eps, decay});
  CUDA_CHECK(cudaDeviceSynchronize()); // the buffers above end here
}

} // namespace

TEST_CASE("AdamW follows the CPU, decays by the mask and writes the BF16 copy") {
  TestDevice device;
  for (const int64_t count : {int64_t{256}, int64_t{256} * 777}) {
    CAPTURE(count);
    AdamState state(count);
    StepScalars scalars = fresh_scalars();
    scalars.grad_scale = 0.01f;
    GuardState guard = fresh_guard();
    for (const int64_t t : {1, 2, 3, 1000, 200000}) {
      guard.adam_step = t;
      step_both(device, state, random_values(static_cast<size_t>(count), 10 + static_cast<uint64_t>(t), 5.0f), scalars,
                guard);
      CHECK(relative_error(state.gpu_master.download(), state.master) < kFp32Tolerance);
      CHECK(relative_error(state.gpu_m.download(), state.m) < kFp32Tolerance);
      CHECK(relative_error(state.gpu_v.download(), state.v) < kFp32Tolerance);
      CHECK(same_bits(state.gpu_weights.download(), to_bf16(state.gpu_master.download())));
    }
  }
}

TEST_CASE("AdamW on many segments gives the bits of AdamW on each, and the norm of what it subtracts") {
  TestDevice device;
  constexpr int64_t kFlat = 256 * 64, kCompact = 256 * 32;
  const std::vector<AdamWSegment> segments = {{.flat = 256 * 3, .compact = 256 * 20, .second = 0, .count = 256 * 7},
                                              {.flat = 256 * 40, .compact = 0, .second = 256 * 7, .count = 256},
                                              {.flat = 256 * 50, .compact = 256, .second = 256 * 8, .count = 256 * 2}};
  const std::vector<float> master = random_values(kCompact, 1), m = random_values(kCompact, 2, 0.1f),
                           v(kCompact, 0.01f), grad = random_values(kFlat, 3, 5.0f);
  std::vector<uint8_t> mask(kFlat / 256);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<uint8_t>(i % 3 == 1);
  GuardState guard = fresh_guard();
  guard.adam_step = 5;
  DeviceBuffer<float> gpu_grad(grad);
  DeviceBuffer<uint8_t> gpu_mask(mask);
  DeviceBuffer<AdamWSegment> gpu_segments(segments);
  DeviceBuffer<GuardState> gpu_guard(std::vector<GuardState>{guard});
  struct State {
    State(const std::vector<float>& master, const std::vector<float>& m, const std::vector<float>& v)
        : master(master), m(m), v(v), weights{to_bf16(std::vector<float>(kFlat))}, scalars(1) {}
    DeviceBuffer<float> master, m, v;
    DeviceBuffer<bf16> weights;
    DeviceBuffer<StepScalars> scalars;
  };
  for (const Verdict verdict : {Verdict::applied, Verdict::skipped_nonfinite}) {
    State one(master, m, v), many(master, m, v);
    StepScalars scalars = fresh_scalars();
    scalars.grad_scale = 0.01f;
    scalars.verdict = verdict;
    one.scalars.upload({scalars});
    many.scalars.upload({scalars});
    for (const auto& [flat, compact, second, count] : segments)
      adamw(device.cuda,
            AdamW<bf16>{one.master.get() + compact, one.weights.get() + flat, one.m.get() + compact,
                        one.v.get() + second, gpu_grad.get() + flat, gpu_mask.get() + flat / 256, one.scalars,
                        gpu_guard, count, 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, &one.scalars.get()->updates.adamw});
    adamw_segments(device.cuda, AdamWSegments{many.master, many.weights, many.m, many.v, gpu_grad, gpu_mask,
                                              gpu_segments, 3, 256 * 7, many.scalars, gpu_guard, 1e-2f, 0.9f, 0.95f,
                                              1e-8f, 0.1f, &many.scalars.get()->updates.adamw});
    CHECK(same_bits(many.master.download(), one.master.download()));
    CHECK(same_bits(many.m.download(), one.m.download()));
    CHECK(same_bits(many.v.download(), one.v.download()));
    CHECK(same_bits(many.weights.download(), one.weights.download()));
    const double square = one.scalars.download()[0].updates.adamw;
    CHECK(many.scalars.download()[0].updates.adamw == doctest::Approx(square).epsilon(1e-6));
    CHECK((square > 0) == (verdict == Verdict::applied));
    CHECK((same_bits(one.master.download(), master)) == (verdict != Verdict::applied));
  }
}

TEST_CASE("a skipped step changes not one bit, even with a NaN gradient") {
  TestDevice device;
  AdamState state(256 * 33);
  const std::vector<float> master = state.master, m = state.m, v = state.v;
  state.gpu_weights.upload(to_bf16(master));
  StepScalars scalars = fresh_scalars();
  scalars.verdict = Verdict::skipped_norm_z;
  GuardState guard = fresh_guard();
  guard.adam_step = 3;
  step_both(device, state, std::vector<float>(master.size(), std::numeric_limits<float>::quiet_NaN()), scalars, guard);
  CHECK(same_bits(state.gpu_master.download(), master));
  CHECK(same_bits(state.gpu_m.download(), m));
  CHECK(same_bits(state.gpu_v.download(), v));
  CHECK(same_bits(state.gpu_weights.download(), to_bf16(master)));
}

} // namespace gpt2
