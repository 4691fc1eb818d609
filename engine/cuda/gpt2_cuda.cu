// GPT-2 on one GPU: forward and backward in the order of the paper, one line an operation. The blocks and the head are
// here in BF16 and in gpt2_cuda_fp8.cu with their matrix products in FP8; a model may have blocks of both kinds.
//
// R = B T rows (tokens), C channels, Vp the padded vocabulary. An operation is named output first, then its inputs,
// then the layer whose parameters it uses; layers_cuda.cu turns it into a kernel's arguments. The pass says what FP8
// blocks may do to their scales.
#include <cuda_bf16.h>

#include <algorithm>

#include "engine/cuda/gpt2_cuda_model.h"

namespace gpt2 {

// ---- layers ----

LinearLayer GPT2Cuda::linear_layer(int layer, Fp8Site site) const {
  return gpt2::linear_layer(config_, at_, layer, site);
}

BlockLayers GPT2Cuda::block_layers(int layer) const {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& at = at_.blocks[layer];
  const bool first = layer == 0;
  BlockLayers block{.ln1 = {},
                    .qkv = linear_layer(layer, Fp8Site::qkv),
                    .proj = linear_layer(layer, Fp8Site::proj),
                    .ln2 = {},
                    .fc = linear_layer(layer, Fp8Site::fc),
                    .fcproj = linear_layer(layer, Fp8Site::fcproj)};
  block.ln1 = {.weight = at.ln1_weight,
               .bias = at.ln1_bias,
               .x = a.x,
               .x_before = first ? a.x : b_.blocks[layer - 1].x_mid,
               .branch = first ? nullptr : b_.branch,
               .mean = a.mean1,
               .rstd = a.rstd1,
               .adds = first ? std::nullopt : std::optional(linear_layer(layer - 1, Fp8Site::fcproj)),
               .feeds = block.qkv};
  block.ln2 = {.weight = at.ln2_weight,
               .bias = at.ln2_bias,
               .x = a.x_mid,
               .x_before = a.x,
               .branch = b_.branch,
               .mean = a.mean2,
               .rstd = a.rstd2,
               .adds = block.proj,
               .feeds = block.fc};
  return block;
}

LayerNormLayer GPT2Cuda::final_layernorm_layer(int64_t row) const {
  const int64_t first = row * config_.channels;
  return {.weight = at_.lnf_weight,
          .bias = at_.lnf_bias,
          .x = b_.x_final + first,
          .x_before = b_.blocks.back().x_mid + first,
          .branch = b_.branch + first,
          .mean = b_.mean_final + row,
          .rstd = b_.rstd_final + row,
          .adds = linear_layer(config_.layers - 1, Fp8Site::fcproj),
          .feeds = lm_head_layer()};
}

// ---- forward ----

// Up to the last block's x_mid and branch; the final LayerNorm, which adds them, belongs to the head.
void GPT2Cuda::forward(int B, int T, Fp8Pass pass, Exchange exchange) {
  const int64_t R = static_cast<int64_t>(B) * T;
  const bool fetches = ranks_ && exchange != Exchange::none;
  if (fetches) {
    ranks_->await(ParameterTable::kEmbeddings);
    ranks_->begin_own_work();
  }
  embedding_.forward(b_.blocks[0].x, B, T); // wte[token] + wpe[position]
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (fetches) ranks_->await(ParameterTable::block_bucket(layer));
    const Timeline::Span span(timeline_.get(), cuda_.stream, "compute", "forward " + std::to_string(layer));
    enter_block(layer, R, pass);
    if (fp8_block(layer))
      block_forward_fp8(layer, B, T, pass);
    else
      block_forward(layer, B, T);
  }
}

// x = x_mid + MLP's output of the block before; h1 = LayerNorm(x). The first block's x is the embedding.
void GPT2Cuda::enter_block(int layer, int64_t R, Fp8Pass pass) {
  const BlockLayers block = block_layers(layer);
  if (fp8_block(layer))
    fp8_->layers.norms.forward(b_.fp8.h, block.ln1, R, pass);
  else
    norms_.forward(b_.blocks[layer].h1, block.ln1, R);
}

// From h1 to the MLP's output, which stays in b_.branch for the next residual add.
void GPT2Cuda::block_forward(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const int64_t R = static_cast<int64_t>(B) * T;

  linears_.forward(a.qkv, a.h1, block.qkv, R); // (R, C) -> (R, 3C)
  if (keeping_) keep(layer, keeping_->cache, keeping_->places);
  attention_.forward(a, B, T);                                           // qkv (B, T, 3, NH, HS) -> o (B, T, NH, HS)
  linears_.forward(b_.branch, a.o, block.proj, R);                       // (R, C) -> (R, C)
  norms_.forward(a.h2, block.ln2, R);                                    // x_mid = x + branch; h2 = LayerNorm(x_mid)
  linears_.forward_gelu(a.gelu, a.pre, a.h2, block.fc, R, fuses_gelu()); // (R, C) -> pre (R, 4C), gelu(pre)
  linears_.forward(b_.branch, a.gelu, block.fcproj, R);                  // (R, 4C) -> (R, C)
}

// ---- LM head: a chunk of logits at a time, its gradient taken at once; the full logits never exist ----

void GPT2Cuda::head(int64_t R, bool backward) {
  const LinearLayer lm_head = lm_head_layer();
  const int64_t chunk = b_.logits_rows;
  norms_.forward(b_.h_final, final_layernorm_layer(), R); // x_final = x_mid + branch
  for (int64_t row = 0; row < R; row += chunk) {
    const int64_t rows = std::min(chunk, R - row), first = row * config_.channels;
    linears_.forward(b_.logits, b_.h_final + first, lm_head, rows); // (rows, C) -> (rows, Vp)
    losses_.of_chunk(row, rows, backward);                          // logits become their gradient, softmax - onehot
    if (!backward) continue;
    linears_.weight_gradient(b_.logits, b_.h_final + first, lm_head, rows); // (Vp, C) += dlogits^T h_final
    linears_.input_gradient(b_.dh + first, b_.logits, lm_head, rows);       // (rows, Vp) -> (rows, C)
  }
}

// ---- backward ----

// From dh, the gradient of the final LayerNorm's output, down the residual stream: dx is its gradient all the way.
void GPT2Cuda::backward(int B, int T, Fp8Pass pass, Exchange exchange) {
  const int64_t R = static_cast<int64_t>(B) * T;
  const bool contributes = ranks_ && exchange == Exchange::contributing;
  if (fp8_block(config_.layers - 1))
    fp8_->layers.norms.gradient(b_.dx, {b_.fp8.dx, b_.fp8.dx_t}, nullptr, b_.dh, final_layernorm_layer(), R, pass);
  else
    norms_.gradient(b_.dx, b_.dh, final_layernorm_layer(), R);
  if (contributes) ranks_->reduce(ParameterTable::block_bucket(config_.layers)); // the final LayerNorm's own
  for (int layer = config_.layers - 1; layer >= 0; --layer) {
    {
      const Timeline::Span span(timeline_.get(), cuda_.stream, "compute", "backward " + std::to_string(layer));
      recompute(layer, B, T);
      if (fp8_block(layer)) {
        block_backward_fp8(layer, B, T, pass);
      } else {
        block_backward(layer, B, T);
        hand_down(layer, R, pass);
      }
    }
    if (contributes) ranks_->reduce(ParameterTable::block_bucket(layer));
  }
  embedding_.gradient(b_.dx, B, T);
  if (!contributes) return;
  ranks_->end_own_work();
  ranks_->reduce(ParameterTable::kEmbeddings); // last: the LM head began it, the embedding has just ended it
  ranks_->join();
}

// Enters with dx, the gradient of the residual stream after the block, whose column sums (the bias gradient of the last
// projection) the LayerNorm above has taken; leaves with dx of the stream before it.
void GPT2Cuda::block_backward(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  float* const qkv_bias = b_.grad + block.qkv.bias;
  const int64_t R = static_cast<int64_t>(B) * T;

  linears_.weight_gradient(b_.dx, a.gelu, block.fcproj, R);  // (C, 4C) += dx^T gelu
  linears_.input_gradient(b_.dwide, b_.dx, block.fcproj, R); // (R, C) -> (R, 4C)
  linears_.gelu_gradient(b_.dwide, a.pre, block.fc, R);      // in place; fc's bias gradient
  linears_.weight_gradient(b_.dwide, a.h2, block.fc, R);     // (4C, C) += dwide^T h2
  linears_.input_gradient(b_.dh, b_.dwide, block.fc, R);     // (R, 4C) -> (R, C)
  norms_.gradient(b_.dx, b_.dh, block.ln2, R);               // dx += ...; proj's bias gradient

  linears_.weight_gradient(b_.dx, a.o, block.proj, R);     // (C, C) += dx^T o
  linears_.input_gradient(b_.dh, b_.dx, block.proj, R);    // (R, C) -> (R, C)
  attention_.gradient(b_.dwide, qkv_bias, b_.dh, a, B, T); // (R, C) -> (R, 3C), and qkv's bias gradient
  linears_.weight_gradient(b_.dwide, a.h1, block.qkv, R);  // (3C, C) += dwide^T h1
  linears_.input_gradient(b_.dh, b_.dwide, block.qkv, R);  // (R, 3C) -> (R, C)
  norms_.gradient(b_.dx, b_.dh, block.ln1, R);             // dx += ...; bias gradient of the fcproj below
}

// Makes again what backward reads of the block and forward did not keep. Of the gradients only dx is alive here: dh
// shares its memory with the branch.
void GPT2Cuda::recompute(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const int64_t R = static_cast<int64_t>(B) * T;
  const bool only_x = recompute_ == Recompute::block && layer != config_.layers - 1; // the last block's are still there
  const bool among_fp8 = fp8_ != nullptr; // FP8's memory never keeps LayerNorm's and GELU's outputs

  if (fp8_block(layer)) {
    if (!only_x) return;
    fp8_->layers.norms.forward(b_.fp8.h, block.ln1.again(), R, Fp8Pass::recomputing);
    return block_forward_fp8(layer, B, T, Fp8Pass::recomputing);
  }
  if (only_x || among_fp8) norms_.forward(a.h1, block.ln1.again(), R);
  if (only_x) return block_forward(layer, B, T);
  if (among_fp8) norms_.forward(a.h2, block.ln2.again(), R);
  if (among_fp8 && fuses_gelu())
    linears_.forward_gelu(a.gelu, a.pre, a.h2, block.fc, R, true);
  else if (among_fp8 || recompute_ == Recompute::gelu)
    linears_.gelu(a.gelu, a.pre, R);
}

// What makes GELU's output again for backward is our kernel, whose bits are not those of cuBLASLt's epilogue: forward
// then uses our kernel too. Not so before FP8 begins: those few steps take the product twice, and have all the bits of
// a run in BF16, so that an FP8 run begins where BF16 would be.
bool GPT2Cuda::fuses_gelu() const { return fuse_gelu_ && recompute_ != Recompute::gelu && (!fp8_ || before_fp8()); }

} // namespace gpt2
