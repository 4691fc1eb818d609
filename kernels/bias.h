// The bias gradient on its own, for layers whose dout no kernel of ours produces (QKV after attention, but
// for Hopper's).
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// dbias += column sums of dout
template <class A>
struct BiasBackward {
  float* dbias;  // (cols) +=
  const A* dout; // (rows, cols); on the GPU a multiple of 8 columns
  int64_t rows;
  int cols;
};
void bias_backward(Cpu&, const BiasBackward<float>&);
void bias_backward(Cuda&, const BiasBackward<bf16>&);

} // namespace gpt2
