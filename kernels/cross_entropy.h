// Fused softmax + cross-entropy over one chunk of rows: the full logits never exist.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// Gradient of the *sum* of losses: softmax - onehot, so |dlogit| <= 1 for any batch; 1/tokens is folded into the norm
// and AdamW. Padded columns and ignored rows get a zero gradient.
template <class A>
struct CrossEntropy {
  A* logits;              // (rows, Vp) in: logits; out: their gradient if write_gradient
  float* losses;          // (rows) nats; 0 for ignored targets
  const int32_t* targets; // (rows), kIgnoredTarget (-1) to ignore
  int64_t rows;
  int vocab, padded_vocab;
  bool write_gradient;
};
void cross_entropy(Cpu&, const CrossEntropy<float>&);
void cross_entropy(CudaStream&, const CrossEntropy<bf16>&);

} // namespace gpt2
