// GELU on the CPU. 0.5 (1 + tanh(u)) = 1 / (1 + e^-2u): one exponential, and accurate in the negative tail, where 1 +
// tanh(u) cancels.
#include "kernels/gelu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/vector_math.h"

namespace gpt2 {
namespace {

constexpr float kTwoRootTwoOverPi = 1.5957691216057308f; // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;
constexpr int kStrip = 64; // columns per thread and iteration

inline float gate(float x) {
  const float twice_u = kTwoRootTwoOverPi * (x + kCubic * x * x * x);
  return 1 / (1 + vector_exp(-twice_u));
}

// Beyond |x| = 11 the gate is 0 or 1 and the derivative equals it; further out the square overflows, and 0 * infinity
// is NaN. An infinite x gives NaN, as on the GPU and in PyTorch, and the step is skipped.
inline float derivative(float x) {
  using Float = std::numeric_limits<float>;
  constexpr float kFlat = 100;
  const float g = gate(x);
  const float slope = g + x * g * (1 - g) * (kTwoRootTwoOverPi * (1 + 3 * kCubic * x * x));
  const float beyond = std::fabs(x) <= Float::max() ? g : Float::quiet_NaN();
  return std::fabs(x) < kFlat ? slope : beyond;
}

} // namespace

void gelu_forward(Cpu&, const GeluForward<float>& op) {
  const float* in = op.in;
  float* out = op.out;
  const int64_t count = op.rows * op.cols;
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < count; ++i) out[i] = in[i] * gate(in[i]);
}

// Threads split the columns: each column is summed in row order for any number of threads.
void gelu_backward(Cpu&, const GeluBackward<float>& op) {
#pragma omp parallel for schedule(static)
  for (int start = 0; start < op.cols; start += kStrip) {
    const int width = std::min(kStrip, op.cols - start);
    double sums[kStrip] = {};
    for (int64_t row = 0; row < op.rows; ++row) {
      const int64_t offset = row * op.cols + start;
      const float *dout = op.dout + offset, *in = op.in + offset;
      float* din = op.din + offset;
#pragma omp simd
      for (int c = 0; c < width; ++c) din[c] = dout[c] * derivative(in[c]); // din may be dout
      for (int c = 0; c < width; ++c) sums[c] += din[c];
    }
    if (op.dbias == nullptr) continue;
    for (int c = 0; c < width; ++c) op.dbias[start + c] += static_cast<float>(sums[c]);
  }
}

} // namespace gpt2
