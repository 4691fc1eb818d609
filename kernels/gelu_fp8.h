// GELU and its gradient with FP8 outputs, and the transposes for the weight gradients. GPU only.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

// out = quantize(gelu(in)). 3 bytes per element.
struct GeluForwardFp8 {
  Fp8Output out;  // data only
  const bf16* in; // (rows, cols)
  int64_t rows;   // a multiple of 16
  int cols;       // a multiple of 16
};
void gelu_forward_fp8(CudaStream&, const GeluForwardFp8&);

// din = quantize(dout * gelu'(in)), row-major and transposed; recomputes gelu(in), transposed. 7 bytes per element (4
// read, 3 written).
struct GeluBackwardFp8 {
  Fp8Output din;    // data and transposed; amax_only(): writes nothing else
  Fp8Output out;    // transposed only: (cols, rows) of gelu(in); no statistics if forward's
  float* dbias;     // (cols) += column sums of din before quantization
  const bf16* dout; // (rows, cols)
  const bf16* in;   // (rows, cols)
  int64_t rows;
  int cols;
};
void gelu_backward_fp8(CudaStream&, const GeluBackwardFp8&);

} // namespace gpt2
