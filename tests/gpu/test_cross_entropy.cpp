// Fused softmax + cross-entropy on the GPU against the CPU reference.
#include "kernels/cross_entropy.h"

#include "tests/gpu/logits_test.h"

namespace gpt2 {
namespace {

constexpr double kLossTolerance = 1e-5;     // FP32 exponentials and sums
constexpr double kGradientTolerance = 4e-3; // BF16's rounding, 1.7e-3 in norm, of values spread over many binades

struct Result {
  std::vector<float> losses;
  std::vector<bf16> logits;
};

Result run(TestDevice& device, const Logits& logits, const std::vector<bf16>& in, bool write_gradient) {
  DeviceBuffer<bf16> gpu_logits(in);
  DeviceBuffer<float> losses(static_cast<size_t>(logits.rows));
  DeviceBuffer<int32_t> targets(logits.targets);
  cross_entropy(device.cuda, CrossEntropy<bf16>{gpu_logits, losses, targets, logits.rows, logits.vocab, logits.padded,
                                                write_gradient});
  return {losses.download(), gpu_logits.download()};
}

// A vocabulary that is a multiple of nothing, GPT-2's, one without padding, one of a single vector.
std::vector<Logits> all_logits() {
  return {{1, 101, 128},  {7, 101, 128}, {130, 1000, 1024}, {7, 50257, 50304},
          {33, 128, 128}, {5, 3, 8},     {64, 8193, 8320}};
}

} // namespace

TEST_CASE("losses and gradients agree with the CPU; padding and ignored rows are exactly zero") {
  TestDevice device;
  for (const Logits& logits : all_logits()) {
    CAPTURE(logits.name());
    std::vector<float> losses, expected;
    logits.expect(device.cpu, losses, expected);
    const Result result = run(device, logits, logits.for_gpu(), true);
    CHECK(relative_error(result.losses, losses) < kLossTolerance);

    std::vector<float> gradient = to_float(result.logits);
    size_t nonzero = 0;
    for (int64_t row = 0; row < logits.rows; ++row) {
      const int32_t target = logits.targets[static_cast<size_t>(row)];
      const int first = target == kIgnoredTarget ? 0 : logits.vocab;
      for (int v = first; v < logits.padded; ++v) nonzero += !(gradient[logits.at(row, v)] == 0);
      if (target == kIgnoredTarget) {
        CHECK(result.losses[static_cast<size_t>(row)] == 0);
        continue;
      }
      const size_t at = logits.at(row, target); // its -1 would hide the rest of the row
      CHECK(gradient[at] == doctest::Approx(expected[at]).epsilon(0.005));
      gradient[at] = expected[at] = 0;
    }
    CHECK(nonzero == 0);
    CHECK(relative_error(gradient, expected) < kGradientTolerance);
  }
}

TEST_CASE("without a gradient the logits stay as they are") {
  TestDevice device;
  for (const Logits& logits : all_logits()) {
    CAPTURE(logits.name());
    std::vector<float> losses, unused;
    logits.expect(device.cpu, losses, unused);
    const std::vector<bf16> in = logits.for_gpu();
    const Result result = run(device, logits, in, false);
    CHECK(relative_error(result.losses, losses) < kLossTolerance);
    CHECK(same_bits(result.logits, in));
    CHECK(same_bits(result.losses, run(device, logits, in, true).losses));
  }
}

TEST_CASE("logits of any size give finite losses") {
  TestDevice device;
  for (const float deviation : {1e-3f, 100.0f, 1e5f}) {
    CAPTURE(deviation);
    const Logits logits(12, 1000, 1024, deviation);
    std::vector<float> losses, expected;
    logits.expect(device.cpu, losses, expected);
    const Result result = run(device, logits, logits.for_gpu(), true);
    CHECK(relative_error(result.losses, losses) < 1e-4);
    for (const float value : to_float(result.logits)) CHECK(std::fabs(value) <= 1);
  }
}

TEST_CASE("a NaN or an infinity among the logits reaches the loss") {
  TestDevice device;
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const int count : {1, 8}) { // one logit, or all of one thread's
    for (const float value : {nan, infinity}) {
      CAPTURE(count);
      CAPTURE(value);
      Logits logits(2, 1000, 1024);
      logits.targets = {500, 500};
      for (int v = 96; v < 96 + count; ++v) logits.values[logits.at(1, v)] = value;
      const Result result = run(device, logits, logits.for_gpu(), false);
      CHECK(std::isfinite(result.losses[0]));
      CHECK_FALSE(std::isfinite(result.losses[1]));
    }
  }
}

} // namespace gpt2
