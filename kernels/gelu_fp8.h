// GELU into FP8 and its gradient into FP8, with the transposes that the weight gradients need. GPU only.
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

// din = quantize(dout * gelu'(in)), both ways round; gelu(in) again, transposed. 7 bytes per element (4 read, 3
// written).
struct GeluBackwardFp8 {
  Fp8Output din;    // data and transposed; where it measures, nothing else is written
  Fp8Output out;    // only .transposed: (cols, rows) codes of gelu(in); unmetered where they are forward's
  float* dbias;     // (cols) += column sums of din before quantization
  const bf16* dout; // (rows, cols)
  const bf16* in;   // (rows, cols)
  int64_t rows;
  int cols;
};
void gelu_backward_fp8(CudaStream&, const GeluBackwardFp8&);

} // namespace gpt2
