// GPT-2 on one GPU: forward and backward, one line per operation. This file has the BF16 blocks and head,
// gpt2_cuda_fp8.cu those with FP8 GEMMs; a model may mix blocks of both kinds.
//
// R = B T rows (tokens), C channels, Vp padded vocabulary. Arguments: output, inputs, then the layer with its
// parameters; layers_cuda.cu launches the kernels.
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

// Up to the last block's x_mid and branch; the head's LayerNorm adds them.
void GPT2Cuda::forward(int B, int T, Fp8Pass pass, Exchange exchange) {
  const int64_t R = static_cast<int64_t>(B) * T;
  const bool awaits_weights = ranks_ && exchange != Exchange::none;
  if (awaits_weights) {
    ranks_->await(ParameterTable::kEmbeddings);
    ranks_->begin_own_work();
  }
  embedding_.forward(b_.blocks[0].x, B, T); // wte[token] + wpe[position]
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (awaits_weights) ranks_->await(ParameterTable::block_bucket(layer));
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

// From h1 to the MLP's output in b_.branch; the next LayerNorm adds it to the residual stream.
void GPT2Cuda::block_forward(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const int64_t R = static_cast<int64_t>(B) * T;

  linears_.forward(a.qkv, a.h1, block.qkv, R); // (R, C) -> (R, 3C)
  if (prefill_cache_) append_to_cache(layer, prefill_cache_->cache, prefill_cache_->slots);
  attention_.forward(a, B, T);                                           // qkv (B, T, 3, NH, HS) -> o (B, T, NH, HS)
  linears_.forward(b_.branch, a.o, block.proj, R);                       // (R, C) -> (R, C)
  norms_.forward(a.h2, block.ln2, R);                                    // x_mid = x + branch; h2 = LayerNorm(x_mid)
  linears_.forward_gelu(a.gelu, a.pre, a.h2, block.fc, R, fuses_gelu()); // (R, C) -> pre (R, 4C), gelu(pre)
  linears_.forward(b_.branch, a.gelu, block.fcproj, R);                  // (R, 4C) -> (R, C)
}

// ---- LM head: logits and their gradient one chunk of rows at a time; the full logits never exist ----

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

// From dh, the gradient of the final LayerNorm's output; dx is the gradient of the residual stream throughout.
void GPT2Cuda::backward(int B, int T, Fp8Pass pass, Exchange exchange) {
  const int64_t R = static_cast<int64_t>(B) * T;
  const bool reduces = ranks_ && exchange == Exchange::reduce_gradients;
  if (fp8_block(config_.layers - 1))
    fp8_->layers.norms.gradient(b_.dx, {b_.fp8.dx, b_.fp8.dx_t}, nullptr, b_.dh, final_layernorm_layer(), R, pass);
  else
    norms_.gradient(b_.dx, b_.dh, final_layernorm_layer(), R);
  if (reduces) ranks_->reduce(ParameterTable::block_bucket(config_.layers)); // the final LayerNorm
  for (int layer = config_.layers - 1; layer >= 0; --layer) {
    {
      const Timeline::Span span(timeline_.get(), cuda_.stream, "compute", "backward " + std::to_string(layer));
      recompute(layer, B, T);
      if (fp8_block(layer)) {
        block_backward_fp8(layer, B, T, pass);
      } else {
        block_backward(layer, B, T);
        quantize_dx_for_block_below(layer, R, pass);
      }
    }
    if (reduces) ranks_->reduce(ParameterTable::block_bucket(layer));
  }
  embedding_.gradient(b_.dx, B, T);
  if (!reduces) return;
  ranks_->end_own_work();
  ranks_->reduce(ParameterTable::kEmbeddings); // last: gradients of the LM head and the embedding
  ranks_->join();
}

// In: dx of the residual stream after the block; the LayerNorm above has computed its column sums, fcproj's bias
// gradient. Out: dx of the stream before the block.
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

// Recomputes the activations of the block that backward reads and forward did not save. Of the gradients only dx is
// live here: dh aliases the branch.
void GPT2Cuda::recompute(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const int64_t R = static_cast<int64_t>(B) * T;
  const bool only_x = recompute_ == Recompute::block && layer != config_.layers - 1; // the last block's are valid
  const bool among_fp8 = fp8_ != nullptr; // an FP8 model never saves LayerNorm's and GELU's outputs

  if (fp8_block(layer)) {
    if (!only_x) return;
    fp8_->layers.norms.forward(b_.fp8.h, block.ln1.without_add(), R, Fp8Pass::recomputing);
    return block_forward_fp8(layer, B, T, Fp8Pass::recomputing);
  }
  if (only_x || among_fp8) norms_.forward(a.h1, block.ln1.without_add(), R);
  if (only_x) return block_forward(layer, B, T);
  if (among_fp8) norms_.forward(a.h2, block.ln2.without_add(), R);
  if (among_fp8 && fuses_gelu())
    linears_.forward_gelu(a.gelu, a.pre, a.h2, block.fc, R, true);
  else if (among_fp8 || recompute_ == Recompute::gelu)
    linears_.gelu(a.gelu, a.pre, R);
}

// Where backward recomputes GELU with our kernel, forward uses it too: cuBLASLt's epilogue has other bits. Exception:
// within --fp8_bf16_steps recompute() runs the whole fused GEMM again, so that these steps equal a BF16 run bit for
// bit.
bool GPT2Cuda::fuses_gelu() const { return fuse_gelu_ && recompute_ != Recompute::gelu && (!fp8_ || before_fp8()); }

} // namespace gpt2
