// Second pass of split reductions: kernels write partial sums, one row or value per CTA or tile, to scratch memory; one
// small kernel adds them in an order that depends on their number alone. No atomics: deterministic.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// Up to three column sums at once: bias and LayerNorm gradients. A null output is skipped.
struct ColumnSums {
  float* out[3];         // (cols) +=
  int outputs;           // 1 to 3
  const float* partials; // (count, outputs, cols)
  int count, cols;
};
void add_column_partials(CudaStream& cuda, const ColumnSums& p);

// *sum += partials[0] + partials[1] + ...
void add_partial_sums(CudaStream& cuda, double* sum, const double* partials, int64_t count);

} // namespace gpt2
