// GPT-2 on one GPU: forward and backward in the order of the paper, one line an operation. The blocks and the head are
// here in BF16 and in gpt2_cuda_fp8.cu with their matrix products in FP8; a model may have blocks of both kinds.
//
// R = B T rows (tokens), C channels, Vp the padded vocabulary. An operation is named output first, then its inputs,
// then the layer whose parameters it uses; gpt2_cuda_ops.cu turns it into a kernel's arguments.
#include <cuda_bf16.h>

#include <algorithm>

#include "engine/cuda/gpt2_cuda_model.h"

namespace gpt2 {

// ---- forward ----

// Up to the last block's x_mid and branch; the final LayerNorm, which adds them, belongs to the head.
void GPT2Cuda::forward(int B, int T) {
  const int64_t R = static_cast<int64_t>(B) * T;
  embed(B, T); // blocks[0].x = wte[token] + wpe[position]
  for (int layer = 0; layer < config_.layers; ++layer) {
    enter_block(layer, R);
    if (fp8_block(layer))
      block_forward_fp8(layer, B, T);
    else
      block_forward(layer, B, T);
  }
}

// x = x_mid + MLP's output of the block before; h1 = LayerNorm(x). The first block's x is the embedding.
void GPT2Cuda::enter_block(int layer, int64_t R) {
  const BlockLayers block = block_layers(layer);
  if (fp8_block(layer))
    layernorm_fp8(b_.fp8.h, block.ln1, R);
  else
    layernorm(b_.blocks[layer].h1, block.ln1, R);
}

// From h1 to the MLP's output, which stays in b_.branch for the next residual add.
void GPT2Cuda::block_forward(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const int64_t R = static_cast<int64_t>(B) * T;

  linear(a.qkv, a.h1, block.qkv, R);             // (R, C) -> (R, 3C)
  attention(a, B, T);                            // qkv (B, T, 3, NH, HS) -> o (B, T, NH, HS)
  linear(b_.branch, a.o, block.proj, R);         // (R, C) -> (R, C)
  layernorm(a.h2, block.ln2, R);                 // x_mid = x + branch; h2 = LayerNorm(x_mid)
  linear_gelu(a.gelu, a.pre, a.h2, block.fc, R); // (R, C) -> pre (R, 4C), gelu(pre)
  linear(b_.branch, a.gelu, block.fcproj, R);    // (R, 4C) -> (R, C)
}

// ---- LM head: a chunk of logits at a time, its gradient taken at once; the full logits never exist ----

void GPT2Cuda::head(int64_t R, StepScalars* scalars, bool backward) {
  const LinearLayer lm_head = lm_head_layer();
  const int64_t chunk = logits_chunk(options_.precision);
  layernorm(b_.h_final, final_layernorm_layer(), R); // x_final = x_mid + branch
  for (int64_t row = 0; row < R; row += chunk) {
    const int64_t rows = std::min(chunk, R - row), first = row * config_.channels;
    linear(b_.logits, b_.h_final + first, lm_head, rows); // (rows, C) -> (rows, Vp)
    chunk_losses(row, rows, backward);                    // logits become their gradient, softmax - onehot
    if (!backward) continue;
    linear_weight_gradient(b_.logits, b_.h_final + first, lm_head, rows);
    linear_input_gradient(b_.dh + first, b_.logits, lm_head, rows);
  }
  sum_losses(scalars, R);
}

// ---- backward ----

// From dh, the gradient of the final LayerNorm's output, down the residual stream: dx is its gradient all the way.
void GPT2Cuda::backward(int B, int T) {
  const int64_t R = static_cast<int64_t>(B) * T;
  if (fp8())
    layernorm_gradient_fp8({b_.fp8.dx, b_.fp8.dx_t}, nullptr, b_.dh, final_layernorm_layer(), R);
  else
    layernorm_gradient(b_.dx, b_.dh, final_layernorm_layer(), R);
  for (int layer = config_.layers - 1; layer >= 0; --layer) {
    recompute(layer, B, T);
    if (fp8_block(layer)) {
      block_backward_fp8(layer, B, T);
    } else {
      block_backward(layer, B, T);
      hand_down(layer, R);
    }
  }
  embed_gradient(B, T);
}

// Enters with dx, the gradient of the residual stream after the block, whose column sums (the bias gradient of the last
// projection) the LayerNorm above has taken; leaves with dx of the stream before it.
void GPT2Cuda::block_backward(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const int64_t R = static_cast<int64_t>(B) * T;

  linear_weight_gradient(b_.dx, a.gelu, block.fcproj, R);  // (C, 4C) += dx^T gelu
  linear_input_gradient(b_.dwide, b_.dx, block.fcproj, R); // (R, C) -> (R, 4C)
  gelu_gradient(b_.dwide, a.pre, block.fc, R);             // in place; fc's bias gradient
  linear_weight_gradient(b_.dwide, a.h2, block.fc, R);     // (4C, C) += dwide^T h2
  linear_input_gradient(b_.dh, b_.dwide, block.fc, R);     // (R, 4C) -> (R, C)
  layernorm_gradient(b_.dx, b_.dh, block.ln2, R);          // dx += ...; proj's bias gradient

  linear_weight_gradient(b_.dx, a.o, block.proj, R);    // (C, C) += dx^T o
  linear_input_gradient(b_.dh, b_.dx, block.proj, R);   // (R, C) -> (R, C)
  attention_gradient(b_.dwide, b_.dh, a, B, T);         // (R, C) -> (R, 3C)
  linear_bias_gradient(b_.dwide, block.qkv, R);         // (3C) += column sums
  linear_weight_gradient(b_.dwide, a.h1, block.qkv, R); // (3C, C) += dwide^T h1
  linear_input_gradient(b_.dh, b_.dwide, block.qkv, R); // (R, 3C) -> (R, C)
  layernorm_gradient(b_.dx, b_.dh, block.ln1, R);       // dx += ...; bias gradient of the fcproj below
}

// Makes again what backward reads of the block and forward did not keep. Of the gradients only dx is alive here: dh
// shares its memory with the branch.
void GPT2Cuda::recompute(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const int64_t R = static_cast<int64_t>(B) * T;
  const bool only_x = recompute_ == Recompute::block && layer != config_.layers - 1; // the last block's are still there
  const bool among_fp8 = fp8(); // a block in BF16 among FP8 ones never keeps LayerNorm's and GELU's outputs

  if (fp8_block(layer)) {
    if (only_x) recompute_fp8(layer, B, T);
    return;
  }
  if (only_x || among_fp8) layernorm(a.h1, block.ln1.again(), R);
  if (only_x) return block_forward(layer, B, T);
  if (among_fp8) layernorm(a.h2, block.ln2.again(), R);
  if (among_fp8 || recompute_ == Recompute::gelu) gelu(a.gelu, a.pre, R);
}

} // namespace gpt2
