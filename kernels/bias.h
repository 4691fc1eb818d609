// The bias gradient on its own: of QKV after attention by cuDNN or by the kernels for all GPUs. Hopper's take it along.
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
void bias_backward(CudaStream&, const BiasBackward<bf16>&);

} // namespace gpt2
