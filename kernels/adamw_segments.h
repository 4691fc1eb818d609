// AdamW on many short segments in one launch. Under Muon a block has five runs of vectors left for AdamW, each shorter
// than a launch. GPU only.
#pragma once

#include "kernels/backend.h"
#include "kernels/optimizer.h"

namespace gpt2 {

// In elements; count is a multiple of 256.
struct AdamWSegment {
  int64_t flat;    // in the flat buffers: gradients, BF16 weights, decay mask
  int64_t compact; // in the rank's own buffers: master weights, first moments
  int64_t second;  // in the rank's second moments
  int64_t count;
};

// As struct AdamW; pointers to the start of each buffer.
struct AdamWSegments {
  float* master;                // compact
  bf16* weights;                // flat
  float* m;                     // compact
  float* v;                     // second moments
  const float* grad;            // flat, of the sum over tokens
  const uint8_t* decay_mask;    // flat, one byte per 256 elements
  const AdamWSegment* segments; // in device memory
  int count;
  int64_t longest; // elements
  const StepScalars* scalars;
  const GuardState* guard;
  float lr, beta1, beta2, eps, weight_decay;
  double* update_square; // += squares of the update without decay
};
void adamw_segments(CudaStream&, const AdamWSegments&);

} // namespace gpt2
