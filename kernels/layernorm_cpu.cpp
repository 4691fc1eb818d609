// LayerNorm forward, fused with the residual add, on the CPU. A row is a few KB: it stays in the L1 cache between the
// loops.
#include "kernels/layernorm.h"

#include <cmath>

namespace gpt2 {
namespace {

struct Moments {
  float mean, rstd;
};

Moments row_moments(const float* x, int C) {
  double sum = 0; // in double: a residual stream may have a mean far above its deviation
  for (int c = 0; c < C; ++c) sum += x[c];
  const float mean = static_cast<float>(sum / C);
  float square = 0; // squared deviation: E[x^2] - mean^2 would cancel
  for (int c = 0; c < C; ++c) square += (x[c] - mean) * (x[c] - mean);
  return {mean, 1 / std::sqrt(square / C + kLayerNormEpsilon)};
}

} // namespace

void layernorm_forward(Cpu&, const LayerNormForward<float>& op) {
  const int C = op.C;
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < op.rows; ++row) {
    const float* x = op.residual_in + row * C;
    if (op.branch != nullptr) {
      const float* branch = op.branch + row * C;
      float* sum = op.residual_out + row * C;
#pragma omp simd
      for (int c = 0; c < C; ++c) sum[c] = x[c] + branch[c]; // may be in place
      x = sum;
    }
    const auto [mean, rstd] = row_moments(x, C);
    const float *weight = op.weight, *bias = op.bias;
    float* out = op.out + row * C;
    for (int c = 0; c < C; ++c) out[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
    op.mean[row] = mean;
    op.rstd[row] = rstd;
  }
}

} // namespace gpt2
