// Softmax + cross-entropy on the CPU: one pass for the sum, one for the gradient; threads split the rows.
#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/ignored_target.h"
#include "kernels/vector_math.h"

namespace gpt2 {
namespace {

struct SoftmaxSum {
  float highest;
  double sum; // sum of e^(x - highest)
};

// Short blocks are summed in float, the blocks in double: a float sum of 50,257 values would lose three digits.
SoftmaxSum softmax_sum(const float* x, int count) {
  constexpr int kBlock = 256;
  const float highest = vector_max(x, count);
  double sum = 0;
  for (int start = 0; start < count; start += kBlock) {
    const int end = std::min(start + kBlock, count);
    float block_sum = 0;
#pragma omp simd reduction(+ : block_sum)
    for (int i = start; i < end; ++i) block_sum += vector_exp(x[i] - highest);
    sum += block_sum;
  }
  return {highest, sum};
}

} // namespace

void cross_entropy(Cpu&, const CrossEntropy<float>& op) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < op.rows; ++row) {
    float* logits = op.logits + row * op.padded_vocab;
    const int32_t target = op.targets[row];
    if (target == kIgnoredTarget) {
      op.losses[row] = 0;
      if (op.write_gradient) std::fill_n(logits, op.padded_vocab, 0.0f);
      continue;
    }
    const auto [highest, sum] = softmax_sum(logits, op.vocab);
    op.losses[row] = static_cast<float>(std::log(sum) + (static_cast<double>(highest) - logits[target]));
    if (!op.write_gradient) continue;
    const float inverse_sum = static_cast<float>(1 / sum);
    for (int v = 0; v < op.vocab; ++v) logits[v] = vector_exp(logits[v] - highest) * inverse_sum;
    logits[target] -= 1;
    std::fill(logits + op.vocab, logits + op.padded_vocab, 0.0f);
  }
}

} // namespace gpt2
