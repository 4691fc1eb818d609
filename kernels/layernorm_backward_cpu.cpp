// LayerNorm backward on the CPU.
#include "kernels/layernorm_backward.h"

#include <algorithm>

namespace gpt2 {
namespace {

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

// Sums of the columns [start, start + width), in row order for any number of threads.
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
