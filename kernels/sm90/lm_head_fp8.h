// The LM head's GEMM with softmax's partial maxima and sums fused into its epilogue: cross_entropy_fp8.h then reads the
// logits once instead of twice. Hopper only.
#pragma once

#include "kernels/cross_entropy_fp8.h"
#include "kernels/fp8_tensor.h"

namespace gpt2 {

struct CudaDevice;

// SoftmaxParts per row: one per tile of columns. 0: no fused kernel for this shape on any GPU.
int lm_head_parts_fp8(int C, int padded_vocab);

// Else: gemm_fp8.h, and CrossEntropyFp8 without parts.
bool can_fuse_lm_head_fp8(const CudaDevice& device, int64_t rows, int C, int padded_vocab);

// logits = in weight^T. The epilogue writes 2 bytes per logit and 8 per part.
struct LmHeadFp8 {
  bf16* logits;       // (rows, Vp)
  SoftmaxPart* parts; // (rows, lm_head_parts_fp8()), of the logits rounded to BF16
  Fp8Tensor in;       // (rows, C) E4M3
  Fp8Tensor weight;   // (Vp, C) E4M3
  int64_t rows;
  int C, vocab, padded_vocab;
};
void lm_head_fp8(CudaStream&, const LmHeadFp8&);

} // namespace gpt2
