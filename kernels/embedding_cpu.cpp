// Token + position embedding on the CPU.
#include "kernels/embedding.h"

#include <algorithm>

namespace gpt2 {

void embedding_forward(Cpu&, const EmbeddingForward<float>& op) {
  const int64_t rows = static_cast<int64_t>(op.B) * op.T;
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const float* token = op.wte + static_cast<int64_t>(op.tokens[row]) * op.C;
    const float* position = op.wpe + (op.positions ? op.positions[row] : row % op.T) * op.C;
    float* out = op.out + row * op.C;
    for (int c = 0; c < op.C; ++c) out[c] = token[c] + position[c];
  }
}

// Threads split the channels: no two write the same address, and every sum runs in token order.
void embedding_backward(Cpu&, const EmbeddingBackward<float>& op) {
  constexpr int kStrip = 64;
  const int64_t rows = static_cast<int64_t>(op.B) * op.T;
#pragma omp parallel for schedule(static)
  for (int start = 0; start < op.C; start += kStrip) {
    const int end = std::min(start + kStrip, op.C);
    for (int64_t row = 0; row < rows; ++row) {
      const float* dout = op.dout + row * op.C;
      float* dtoken = op.dwte + static_cast<int64_t>(op.tokens[row]) * op.C;
      float* dposition = op.dwpe + (op.positions ? op.positions[row] : row % op.T) * op.C;
      for (int c = start; c < end; ++c) dtoken[c] += dout[c];
      for (int c = start; c < end; ++c) dposition[c] += dout[c];
    }
  }
}

} // namespace gpt2
