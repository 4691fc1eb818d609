// Quantization as a separate pass: attention's output and gradient, and the BF16 weights once per optimizer step. GPU
// only.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

// out = quantize(in), row-major, transposed or both: 2 bytes per element read, 1 written per layout.
struct CastFp8 {
  Fp8Output out;
  float* dbias;   // (cols) += column sums of in, or null
  const bf16* in; // (rows, cols)
  int64_t rows;   // a multiple of 16
  int cols;       // a multiple of 16
};
void cast_fp8(CudaStream&, const CastFp8&);

} // namespace gpt2
