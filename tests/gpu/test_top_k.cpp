// The likeliest tokens by bisection on the GPU against a sort on the CPU: ties, few values, infinities, NaN.
#include "kernels/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/gpu/gpu_test.h"

namespace gpt2 {
namespace {

std::vector<TokenLogit> on_gpu(TestDevice& device, const std::vector<float>& logits, int rows, int vocab, int padded,
                               int count) {
  DeviceBuffer<bf16> gpu_logits(to_bf16(logits));
  DeviceBuffer<TokenLogit> out(static_cast<size_t>(rows * count));
  top_k_tokens(device.cuda, {out, gpu_logits, rows, count, vocab, padded});
  std::vector<TokenLogit> likeliest = out.download();
  for (int row = 0; row < rows; ++row)
    std::sort(likeliest.begin() + row * count, likeliest.begin() + (row + 1) * count, likelier);
  return likeliest;
}

} // namespace

TEST_CASE("top_k_tokens are those of a sort, of equals the lower ids") {
  TestDevice device;
  constexpr int kRows = 3;
  for (const auto& [vocab, padded] : {std::pair{50257, 50304}, {1000, 1024}, {8, 8}, {57341, 57344}}) {
    for (const float values : {1e9f, 40.0f, 2.0f}) { // how many different ones there are
      CAPTURE(vocab);
      CAPTURE(values);
      std::vector<float> logits = random_values(static_cast<size_t>(kRows) * static_cast<size_t>(padded), 3);
      for (size_t i = 0; i < logits.size(); ++i) {
        if (values < 1e9f) logits[i] = std::round(logits[i] * values / 4);
        if (static_cast<int>(i) % padded >= vocab) logits[i] = 1e30f; // padding is never chosen
      }
      logits[3] = -std::numeric_limits<float>::infinity();
      logits[5] = -0.0f;
      for (int count : {1, 2, 50, 1024}) {
        count = std::min(count, vocab);
        const auto found = on_gpu(device, logits, kRows, vocab, padded, count);
        for (int row = 0; row < kRows; ++row) {
          const std::vector<float> rounded =
              to_float(to_bf16(std::vector<float>(logits.begin() + static_cast<std::ptrdiff_t>(row) * padded,
                                                  logits.begin() + static_cast<std::ptrdiff_t>(row) * padded + vocab)));
          const auto expected = top_k_tokens(rounded, static_cast<size_t>(count));
          bool same = true;
          for (int i = 0; i < count; ++i) {
            const TokenLogit &a = found[static_cast<size_t>(row * count + i)], &b = expected[static_cast<size_t>(i)];
            same = same && a.token == b.token && a.logit == b.logit;
          }
          CHECK(same);
        }
      }
    }
  }
}

TEST_CASE("a NaN is the likeliest token of all, whatever its sign") {
  TestDevice device;
  for (const float nan : {std::nanf(""), -std::nanf("")}) {
    std::vector<float> logits(1024, 1.0f);
    logits[7] = std::numeric_limits<float>::infinity();
    logits[777] = nan;
    const auto found = on_gpu(device, logits, 1, 1000, 1024, 1);
    CHECK(found[0].token == 777);
    CHECK(std::isnan(found[0].logit));
  }
}

} // namespace gpt2
