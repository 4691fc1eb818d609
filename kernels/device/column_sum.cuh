// Second pass of every column sum (bias and LayerNorm gradients): kernels write one row of partial sums per CTA or tile
// to scratch memory, one small kernel adds those rows in order. Split reduction without atomics: deterministic.
#pragma once

#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

// Up to three sums at once. A null output is skipped.
struct ColumnSums {
  float* out[3];         // (cols) +=
  int outputs;           // 1 to 3
  const float* partials; // (count, outputs, cols)
  int count, cols;
};
void add_column_partials(CudaStream& cuda, const ColumnSums& p);

} // namespace gpt2
