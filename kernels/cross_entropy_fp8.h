// Fused softmax + cross-entropy with an FP8 gradient: dlogits in E5M2, row-major and transposed, with a static scale
// because |dlogit| <= 1, and stochastic rounding (stochastic_rounding.h). GPU only.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

// Softmax statistics of some columns of a row. A NaN among them shows in the sum only.
struct alignas(8) SoftmaxPart { // one 8-byte access
  float maximum;                // -infinity if all columns are, or are padding
  float sum;                    // sum of exp(x - maximum)
};

// Reads the BF16 logits twice, or once if the LM head provides the parts; writes FP8 twice: 6 or 4 bytes per logit.
struct CrossEntropyFp8 {
  const bf16* logits;         // (rows, Vp), unchanged
  float* losses;              // (rows) nats; 0 for ignored targets
  Fp8Output dlogits;          // (rows, Vp) and (Vp, rows), E5M2, static scale, no statistics
  const int32_t* targets;     // (rows), kIgnoredTarget (-1) to ignore
  int64_t rows;               // a multiple of 16
  int64_t first_row;          // position of row 0 in the micro-batch: with first_token the key of the rounding
  const int64_t* first_token; // position of the micro-batch in the step, in device memory: one graph for all
  int vocab, padded_vocab;
  const SoftmaxPart* parts = nullptr; // (rows, parts_per_row) from lm_head_fp8(); null: computed from the logits
  int parts_per_row = 0;
};
void cross_entropy_fp8(CudaStream&, const CrossEntropyFp8&);

} // namespace gpt2
