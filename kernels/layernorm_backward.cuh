// The part of LayerNorm's backward that BF16 and FP8 share: sums over rows and columns.
#pragma once

#include "kernels/cuda_backend.h"
#include "kernels/layernorm.h"

namespace gpt2 {

// Of one row of the gradient of LayerNorm's normalised values.
struct LayerNormRowSums {
  float mean_dnorm;      // mean of dout * weight
  float mean_dnorm_norm; // mean of dout * weight * normalised x
};

// Floats of partial sums that it may leave, whatever the occupancy.
size_t layernorm_backward_partials(const Cuda& cuda, int C);

// The whole backward; or, with `row_sums` (rows), only those and the sums dweight and dbias, 4 bytes per element: FP8
// goes on from there by tiles.
void layernorm_backward_sums(Cuda& cuda, const LayerNormBackward<bf16>& p, LayerNormRowSums* row_sums, float* partials);

} // namespace gpt2
