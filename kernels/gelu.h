// GELU with the tanh approximation: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

template <class A>
struct GeluForward {
  A* out;      // (rows, cols)
  const A* in; // (rows, cols)
  int64_t rows;
  int cols;
};
void gelu_forward(Cpu&, const GeluForward<float>&);
void gelu_forward(CudaStream&, const GeluForward<bf16>&);

template <class A>
struct GeluBackward {
  A* din;        // (rows, cols); may be dout itself
  float* dbias;  // (cols) += column sums of din: bias gradient of the preceding GEMM; may be null
  const A* dout; // (rows, cols)
  const A* in;   // (rows, cols)
  int64_t rows;
  int cols;
};
void gelu_backward(Cpu&, const GeluBackward<float>&);
void gelu_backward(CudaStream&, const GeluBackward<bf16>&);

} // namespace gpt2
