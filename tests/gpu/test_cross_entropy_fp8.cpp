// Cross-entropy whose gradient leaves in E5M2, against the CPU's cross-entropy and quantization.
#include "kernels/cross_entropy_fp8.h"

#include "engine/model/fp8_recipe.h"
#include "tests/gpu/fp8_test.h"
#include "tests/gpu/logits_test.h"

namespace gpt2 {
namespace {

// A vocabulary that is a multiple of nothing, GPT-2's own, one without padding, rows on every side of a tile.
std::vector<Logits> all_logits() {
  return {{16, 101, 128}, {48, 1000, 1024}, {144, 101, 128}, {272, 333, 384}, {16, 50257, 50304}, {32, 128, 128}};
}

constexpr int64_t kFirstRow = 4096;    // a chunk further on
constexpr int64_t kFirstToken = 65536; // of a later micro-batch

// The CPU's stochastic rounding, as codes.
std::vector<uint8_t> rounded_codes(Cpu& cpu, const Logits& logits, const std::vector<float>& gradient) {
  std::vector<float> rounded(gradient.size());
  Fp8Counts counts;
  fp8_quantize_dlogits(cpu, {.out = rounded.data(),
                             .in = gradient.data(),
                             .targets = logits.targets.data(),
                             .first_row = kFirstToken + kFirstRow,
                             .rows = logits.rows,
                             .padded_vocab = logits.padded,
                             .scale = kDlogitsScale,
                             .counts = &counts});
  std::vector<uint8_t> codes;
  for (const float value : rounded) codes.push_back(fp8_encode(value * kDlogitsScale, Fp8Format::e5m2));
  return codes;
}

} // namespace

TEST_CASE("losses, codes and their transpose; padding and ignored rows are zero; the meta is left alone") {
  TestDevice device;
  for (const Logits& logits : all_logits()) {
    CAPTURE(logits.name());
    std::vector<float> losses, gradient;
    logits.expect(device.cpu, losses, gradient);
    const std::vector<uint8_t> expected = rounded_codes(device.cpu, logits, gradient);

    const std::vector<bf16> in = logits.for_gpu();
    DeviceBuffer<bf16> gpu_logits(in);
    DeviceBuffer<float> gpu_losses(losses.size());
    DeviceBuffer<int32_t> targets(logits.targets);
    DeviceBuffer<int64_t> first_token(std::vector<int64_t>{kFirstToken});
    CodeBuffers dlogits(logits.rows, logits.padded, kDlogitsScale);
    cross_entropy_fp8(device.cuda, {.logits = gpu_logits,
                                    .losses = gpu_losses,
                                    .dlogits = dlogits.sink(Fp8Format::e5m2, Fp8Statistics::none),
                                    .targets = targets,
                                    .rows = logits.rows,
                                    .first_row = kFirstRow,
                                    .first_token = first_token,
                                    .vocab = logits.vocab,
                                    .padded_vocab = logits.padded});
    CHECK(relative_error(gpu_losses.download(), losses) < 1e-5);
    CHECK(same_bits(gpu_logits.download(), in));
    const std::vector<uint8_t> codes = dlogits.data.download();
    check_codes(codes, expected, 1e-3);
    dlogits.check_transpose();
    CHECK(dlogits.meta.untouched());

    size_t nonzero = 0;
    for (int64_t row = 0; row < logits.rows; ++row) {
      const bool ignored = logits.targets[static_cast<size_t>(row)] == kIgnoredTarget;
      if (ignored) CHECK(gpu_losses.download()[static_cast<size_t>(row)] == 0);
      for (int v = ignored ? 0 : logits.vocab; v < logits.padded; ++v) nonzero += codes[logits.at(row, v)] != 0;
    }
    CHECK(nonzero == 0);
  }
}

TEST_CASE("a NaN among the logits reaches the loss and the gradient") {
  TestDevice device;
  Logits logits(16, 101, 128);
  logits.values[logits.at(1, 50)] = std::numeric_limits<float>::quiet_NaN();
  logits.targets[1] = 7;
  DeviceBuffer<bf16> gpu_logits(logits.for_gpu());
  DeviceBuffer<float> losses(16);
  DeviceBuffer<int32_t> targets(logits.targets);
  DeviceBuffer<int64_t> first_token(std::vector<int64_t>{0});
  CodeBuffers dlogits(16, 128, kDlogitsScale);
  cross_entropy_fp8(device.cuda, {.logits = gpu_logits,
                                  .losses = losses,
                                  .dlogits = dlogits.sink(Fp8Format::e5m2, Fp8Statistics::none),
                                  .targets = targets,
                                  .rows = 16,
                                  .first_row = 0,
                                  .first_token = first_token,
                                  .vocab = 101,
                                  .padded_vocab = 128});
  CHECK(std::isfinite(losses.download()[0]));
  CHECK(std::isnan(losses.download()[1]));
  CHECK(std::isnan(fp8_decode(dlogits.data.download()[logits.at(1, 50)], Fp8Format::e5m2)));
}

} // namespace gpt2
