// The LM head's product, which also takes what softmax needs of the logits while it holds them: cross_entropy_fp8.h
// then reads them once instead of twice. Hopper only.
#pragma once

#include "kernels/cross_entropy_fp8.h"
#include "kernels/fp8_tensor.h"

namespace gpt2 {

struct CudaDevice;

// Parts of a row of logits: the columns that one block makes. 0: no such kernel for the shape, on whatever GPU.
int lm_head_parts_fp8(int C, int padded_vocab);

// Is there such a kernel for this GPU and so many rows? Otherwise: gemm_fp8.h, and CrossEntropyFp8 without parts.
bool can_fuse_lm_head_fp8(const CudaDevice& device, int64_t rows, int C, int padded_vocab);

// logits = in weight^T. 2 bytes per logit are written behind the product, and 8 per part.
struct LmHeadFp8 {
  bf16* logits;       // (rows, Vp)
  SoftmaxPart* parts; // (rows, lm_head_parts_fp8()), of the logits as they are written
  Fp8Tensor in;       // (rows, C) E4M3
  Fp8Tensor weight;   // (Vp, C) E4M3
  int64_t rows;
  int C, vocab, padded_vocab;
};
void lm_head_fp8(CudaStream&, const LmHeadFp8&);

} // namespace gpt2
