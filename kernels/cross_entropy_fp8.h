// Fused softmax + cross-entropy whose gradient goes to FP8 matrix products: dlogits in E5M2, both ways round, with a
// static scale, since |dlogit| <= 1, rounded stochastically (stochastic_rounding.h). GPU only.
#pragma once

#include "kernels/fp8_tensor.h"

namespace gpt2 {

// What softmax needs of some columns of a row; a NaN among them is in the sum alone.
struct alignas(8) SoftmaxPart { // one access
  float maximum;                // -infinity where all columns are, or only pad the vocabulary
  float sum;                    // of exp(x - maximum)
};

// Two reads of the BF16 logits, or one where the product told the rows' parts; two FP8 writes: 6 bytes per logit, or 4.
struct CrossEntropyFp8 {
  const bf16* logits;     // (rows, Vp), unchanged
  float* losses;          // (rows) nats; 0 where the target is ignored
  Fp8Output dlogits;      // data (rows, Vp) and transposed (Vp, rows); E5M2; meta->scale is the static scale; silent
  const int32_t* targets; // (rows), kIgnoredTarget (-1) to ignore
  int64_t rows;           // a multiple of 16
  int64_t first_row;      // position of row 0 in the micro-batch: with the next one a key of the rounding
  const int64_t* first_token; // position of the micro-batch in the step, in device memory: a graph serves them all
  int vocab, padded_vocab;
  const SoftmaxPart* parts = nullptr; // (rows, parts_per_row) from lm_head_fp8(), or null: from the logits
  int parts_per_row = 0;
};
void cross_entropy_fp8(CudaStream&, const CrossEntropyFp8&);

} // namespace gpt2
