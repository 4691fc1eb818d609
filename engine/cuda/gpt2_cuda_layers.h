// A layer of GPT-2 as a GPU operation sees it: its parameters, tensors and neighbours. With these and LinearLayer,
// gpt2_cuda.cu and gpt2_cuda_fp8.cu say an operation in one line, and gpt2_cuda_ops.cu and gpt2_cuda_fp8_ops.cu turn
// that line into a kernel's arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "engine/model/linear_layer.h"
#include "kernels/backend.h"

namespace gpt2 {

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
  LayerNormLayer again() const; // the stream is there: nothing to add, nothing to write
};

inline LayerNormLayer LayerNormLayer::again() const {
  LayerNormLayer norm = *this;
  norm.x_before = std::exchange(norm.x, nullptr);
  norm.branch = nullptr;
  return norm;
}

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
