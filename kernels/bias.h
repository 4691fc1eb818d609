// The bias gradient as a separate pass: for QKV after cuDNN attention or attention.cu. The Hopper kernels fuse it.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// dbias += column sums of dout
template <class A>
struct BiasBackward {
  float* dbias;  // (cols) +=
  const A* dout; // (rows, cols); GPU: cols is a multiple of 8
  int64_t rows;
  int cols;
};
void bias_backward(Cpu&, const BiasBackward<float>&);
void bias_backward(CudaStream&, const BiasBackward<bf16>&);

} // namespace gpt2
