// The bias gradient on the CPU.
#include "kernels/bias.h"

#include <algorithm>

namespace gpt2 {

// Threads split the columns: each column is summed in row order for any number of threads.
void bias_backward(Cpu&, const BiasBackward<float>& op) {
  constexpr int kStrip = 64;
#pragma omp parallel for schedule(static)
  for (int start = 0; start < op.cols; start += kStrip) {
    const int width = std::min(kStrip, op.cols - start);
    double sums[kStrip] = {};
    for (int64_t row = 0; row < op.rows; ++row) {
      const float* dout = op.dout + row * op.cols + start;
      for (int c = 0; c < width; ++c) sums[c] += dout[c];
    }
    for (int c = 0; c < width; ++c) op.dbias[start + c] += static_cast<float>(sums[c]);
  }
}

} // namespace gpt2
