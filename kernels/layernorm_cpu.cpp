// LayerNorm fused with the residual add, on the CPU. A row is a few KB: it stays in the first cache between the loops.
#include "kernels/layernorm.h"

#include <algorithm>
#include <cmath>

namespace gpt2 {
namespace {

struct Moments {
  float mean, rstd;
};

Moments row_moments(const float* x, int C) {
  double sum = 0; // a residual stream may have a mean far above its deviation
  for (int c = 0; c < C; ++c) sum += x[c];
  const float mean = static_cast<float>(sum / C);
  float square = 0; // of the distance to the mean: E[x^2] - mean^2 would cancel
  for (int c = 0; c < C; ++c) square += (x[c] - mean) * (x[c] - mean);
  return {mean, 1 / std::sqrt(square / C + kLayerNormEpsilon)};
}

// dx = rstd (dnorm - mean(dnorm) - norm mean(dnorm norm)), where norm = (x - mean) rstd and dnorm = dout weight
void row_backward(const LayerNormBackward<float>& op, int64_t row) {
  const int C = op.C;
  const float *dout = op.dout + row * C, *x = op.x + row * C, *weight = op.weight;
  float* dresidual = op.dresidual + row * C;
  const float mean = op.mean[row], rstd = op.rstd[row];

  float dnorm_sum = 0, dnorm_norm_sum = 0;
  for (int c = 0; c < C; ++c) {
    const float dnorm = dout[c] * weight[c];
    dnorm_sum += dnorm;
    dnorm_norm_sum += dnorm * ((x[c] - mean) * rstd);
  }
  const float dnorm_mean = dnorm_sum / C, dnorm_norm_mean = dnorm_norm_sum / C;
  if (!op.accumulate) std::fill_n(dresidual, C, 0.0f);
  for (int c = 0; c < C; ++c) {
    const float norm = (x[c] - mean) * rstd;
    dresidual[c] += rstd * (dout[c] * weight[c] - dnorm_mean - norm * dnorm_norm_mean);
  }
}

// Sums over all rows for the columns [start, start + width), in row order whatever the number of threads.
constexpr int kStrip = 64;
void strip_backward(const LayerNormBackward<float>& op, int start) {
  const int width = std::min(kStrip, op.C - start);
  double dweight[kStrip] = {}, dbias[kStrip] = {}, dbranch_bias[kStrip] = {};
  for (int64_t row = 0; row < op.rows; ++row) {
    const int64_t offset = row * op.C + start;
    const float *dout = op.dout + offset, *x = op.x + offset, *dresidual = op.dresidual + offset;
    const float mean = op.mean[row], rstd = op.rstd[row];
    for (int c = 0; c < width; ++c) dweight[c] += dout[c] * ((x[c] - mean) * rstd);
    for (int c = 0; c < width; ++c) dbias[c] += dout[c];
    for (int c = 0; c < width; ++c) dbranch_bias[c] += dresidual[c];
  }
  for (int c = 0; c < width; ++c) op.dweight[start + c] += static_cast<float>(dweight[c]);
  for (int c = 0; c < width; ++c) op.dbias[start + c] += static_cast<float>(dbias[c]);
  if (op.dbranch_bias == nullptr) return;
  for (int c = 0; c < width; ++c) op.dbranch_bias[start + c] += static_cast<float>(dbranch_bias[c]);
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

void layernorm_backward(Cpu&, const LayerNormBackward<float>& op) {
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < op.rows; ++row) row_backward(op, row);
#pragma omp for schedule(static)
    for (int start = 0; start < op.C; start += kStrip) strip_backward(op, start);
  }
}

} // namespace gpt2
