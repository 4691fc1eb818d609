// A layer of GPT-2 as an operation sees it: where its parameters stand, its shape, and its neighbours. With these,
// gpt2_cuda.cu and gpt2_cuda_fp8.cu say an operation in one line, and gpt2_cuda_ops.cu and gpt2_cuda_fp8_ops.cu turn
// that line into a kernel's arguments.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/model/fp8_recipe.h"
#include "kernels/backend.h"

namespace gpt2 {

// out = in weight^T + bias
struct LinearLayer {
  static constexpr int64_t kNoBias = -1;

  int layer;      // the block it belongs to; of no meaning for the LM head
  Fp8Site site;   // with `layer`, names its activation, weight and gradient in the FP8 recipe
  int C, OC;      // inputs, outputs
  int64_t weight; // offset of (OC, C) in the parameter table's layout
  int64_t bias;   // offset of (OC), or kNoBias
};

// x = x_before + branch;  out = LayerNorm(x)
struct LayerNormLayer {
  int64_t weight, bias;            // offsets of (C)
  bf16* x;                         // (R, C) residual stream after the add, kept for backward
  const bf16* x_before;            // (R, C) before the add
  const bf16* branch;              // (R, C), or null: the first block's x is the embedding, with nothing to add
  float *mean, *rstd;              // (R), kept for backward
  std::optional<LinearLayer> adds; // the projection that made the branch; none where branch is null
  LinearLayer feeds;               // the product that reads the output

  bool is_final() const { return feeds.site == Fp8Site::lm_head; }
};

struct BlockLayers { // in forward order
  LayerNormLayer ln1;
  LinearLayer qkv;  // C -> 3C
  LinearLayer proj; // C -> C
  LayerNormLayer ln2;
  LinearLayer fc;     // C -> 4C
  LinearLayer fcproj; // 4C -> C
};

// Room for the codes of one (R, N) matrix, both ways round.
struct Fp8Codes {
  uint8_t* data;       // (R, N): input gradients contract over N
  uint8_t* transposed; // (N, R): weight gradients contract over R
};

} // namespace gpt2
