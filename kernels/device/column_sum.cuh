// The second half of every column sum (bias and LayerNorm gradients): kernels leave one row of partial sums per block
// or tile in scratch memory, and one small kernel adds those rows in order. No atomics, so the same bits every time.
#pragma once

#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

// Up to three sums side by side: partials are (count, outputs, cols). A null output is skipped.
struct ColumnSums {
  float* out[3];         // (cols) += each
  int outputs;           // 1 to 3
  const float* partials; // (count, outputs, cols)
  int count, cols;
};
void add_column_partials(CudaStream& cuda, const ColumnSums& p);

} // namespace gpt2
