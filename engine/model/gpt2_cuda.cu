// GPT-2 on one GPU: forward and backward in the order of the paper, one line an operation.
#include <cuda_bf16.h>

#include <algorithm>

#include "engine/model/gpt2_cuda_model.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layernorm.h"
#include "kernels/matmul.h"

namespace gpt2 {

// ---- forward ----

void GPT2Cuda::forward(int B, int T) {
  const int C = config_.channels;
  const int64_t R = static_cast<int64_t>(B) * T;
  embedding_forward(cuda_, {.out = b_.blocks[0].x,
                            .tokens = b_.inputs,
                            .wte = weight(at_.wte),
                            .wpe = weight(at_.wpe),
                            .B = B,
                            .T = T,
                            .C = C});
  for (int layer = 0; layer < config_.layers; ++layer) {
    enter_block(layer, R);
    block_forward(layer, B, T);
  }
  final_layernorm(R);
}

void GPT2Cuda::final_layernorm(int64_t R) {
  layernorm_forward(cuda_, {.out = b_.h_final,
                            .residual_out = b_.x_final,
                            .mean = b_.mean_final,
                            .rstd = b_.rstd_final,
                            .residual_in = b_.blocks.back().x_mid,
                            .branch = b_.branch,
                            .weight = weight(at_.lnf_weight),
                            .bias = weight(at_.lnf_bias),
                            .rows = R,
                            .C = config_.channels});
}

// x = x_mid + MLP's output of the block before; h1 = LayerNorm(x). The first block's x is the embedding.
void GPT2Cuda::enter_block(int layer, int64_t R) {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& w = at_.blocks[layer];
  const bool first = layer == 0;
  layernorm_forward(cuda_, {.out = a.h1,
                            .residual_out = a.x,
                            .mean = a.mean1,
                            .rstd = a.rstd1,
                            .residual_in = first ? a.x : b_.blocks[layer - 1].x_mid,
                            .branch = first ? nullptr : b_.branch,
                            .weight = weight(w.ln1_weight),
                            .bias = weight(w.ln1_bias),
                            .rows = R,
                            .C = config_.channels});
}

// From h1 to the MLP's output, which stays in b_.branch for the next residual add.
void GPT2Cuda::block_forward(int layer, int B, int T) {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& w = at_.blocks[layer];
  const int C = config_.channels, NH = config_.heads;
  const int64_t R = static_cast<int64_t>(B) * T;
  matmul_forward(cuda_, {.out = a.qkv,
                         .in = a.h1,
                         .weight = weight(w.qkv_weight),
                         .bias = weight(w.qkv_bias),
                         .rows = R,
                         .C = C,
                         .OC = 3 * C});
  attention_forward(cuda_, {.out = a.o, .stats = a.stats, .qkv = a.qkv, .B = B, .T = T, .NH = NH, .HS = C / NH});
  matmul_forward(cuda_, {.out = b_.branch,
                         .in = a.o,
                         .weight = weight(w.proj_weight),
                         .bias = weight(w.proj_bias),
                         .rows = R,
                         .C = C,
                         .OC = C});
  layernorm_forward(cuda_, {.out = a.h2,
                            .residual_out = a.x_mid,
                            .mean = a.mean2,
                            .rstd = a.rstd2,
                            .residual_in = a.x,
                            .branch = b_.branch,
                            .weight = weight(w.ln2_weight),
                            .bias = weight(w.ln2_bias),
                            .rows = R,
                            .C = C});
  if (fuse_gelu_) {
    matmul_forward_gelu(cuda_, {.out = a.gelu,
                                .pre = a.pre,
                                .in = a.h2,
                                .weight = weight(w.fc_weight),
                                .bias = weight(w.fc_bias),
                                .rows = R,
                                .C = C,
                                .OC = 4 * C});
  } else {
    matmul_forward(cuda_, {.out = a.pre,
                           .in = a.h2,
                           .weight = weight(w.fc_weight),
                           .bias = weight(w.fc_bias),
                           .rows = R,
                           .C = C,
                           .OC = 4 * C});
    gelu_forward(cuda_, {.out = a.gelu, .in = a.pre, .rows = R, .cols = 4 * C});
  }
  matmul_forward(cuda_, {.out = b_.branch,
                         .in = a.gelu,
                         .weight = weight(w.fcproj_weight),
                         .bias = weight(w.fcproj_bias),
                         .rows = R,
                         .C = 4 * C,
                         .OC = C});
}

// ---- LM head: a chunk of logits at a time, its gradient taken at once; the full logits never exist ----

void GPT2Cuda::head(int64_t R, StepScalars* scalars, bool backward) {
  const int C = config_.channels, Vp = config_.padded_vocab;
  const int64_t chunk = logits_chunk(options_.precision);
  for (int64_t row = 0; row < R; row += chunk) {
    const int64_t rows = std::min(chunk, R - row);
    const bf16* h = b_.h_final + row * C;
    matmul_forward(
        cuda_, {.out = b_.logits, .in = h, .weight = weight(at_.wte), .bias = nullptr, .rows = rows, .C = C, .OC = Vp});
    cross_entropy(cuda_, {.logits = b_.logits,
                          .losses = b_.losses + row,
                          .targets = b_.targets + row,
                          .rows = rows,
                          .vocab = config_.vocab,
                          .padded_vocab = Vp,
                          .write_gradient = backward});
    if (!backward) continue;
    matmul_backward_weight(cuda_,
                           {.dweight = grad(at_.wte), .dout = b_.logits, .in = h, .rows = rows, .C = C, .OC = Vp});
    matmul_backward_input(
        cuda_, {.din = b_.dh + row * C, .dout = b_.logits, .weight = weight(at_.wte), .rows = rows, .C = C, .OC = Vp});
  }
  accumulate_loss(cuda_, {.scalars = scalars, .losses = b_.losses, .targets = b_.targets, .rows = R});
}

// ---- backward ----

void GPT2Cuda::backward(int B, int T) {
  const int C = config_.channels;
  const int64_t R = static_cast<int64_t>(B) * T;
  layernorm_backward(cuda_, {.dresidual = b_.dx,
                             .dweight = grad(at_.lnf_weight),
                             .dbias = grad(at_.lnf_bias),
                             .dbranch_bias = grad(at_.blocks.back().fcproj_bias),
                             .dout = b_.dh,
                             .x = b_.x_final,
                             .weight = weight(at_.lnf_weight),
                             .mean = b_.mean_final,
                             .rstd = b_.rstd_final,
                             .rows = R,
                             .C = C,
                             .accumulate = false});
  for (int layer = config_.layers - 1; layer >= 0; --layer) {
    recompute(layer, B, T);
    block_backward(layer, B, T);
  }
  embedding_backward(cuda_, {.dwte = grad(at_.wte),
                             .dwpe = grad(at_.wpe),
                             .dout = b_.dx,
                             .tokens = b_.inputs,
                             .B = B,
                             .T = T,
                             .C = C,
                             .vocab = config_.vocab});
}

// Enters with dx, the gradient of the residual stream after the block, whose column sums (the bias gradient of the last
// projection) the LayerNorm above has taken; leaves with dx of the stream before it.
void GPT2Cuda::block_backward(int layer, int B, int T) {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& w = at_.blocks[layer];
  const int C = config_.channels, NH = config_.heads;
  const int64_t R = static_cast<int64_t>(B) * T;
  float* const bias_below = layer > 0 ? grad(at_.blocks[layer - 1].fcproj_bias) : nullptr;

  matmul_backward_weight(
      cuda_, {.dweight = grad(w.fcproj_weight), .dout = b_.dx, .in = a.gelu, .rows = R, .C = 4 * C, .OC = C});
  matmul_backward_input(
      cuda_, {.din = b_.dwide, .dout = b_.dx, .weight = weight(w.fcproj_weight), .rows = R, .C = 4 * C, .OC = C});
  gelu_backward(cuda_,
                {.din = b_.dwide, .dbias = grad(w.fc_bias), .dout = b_.dwide, .in = a.pre, .rows = R, .cols = 4 * C});
  matmul_backward_weight(cuda_,
                         {.dweight = grad(w.fc_weight), .dout = b_.dwide, .in = a.h2, .rows = R, .C = C, .OC = 4 * C});
  matmul_backward_input(
      cuda_, {.din = b_.dh, .dout = b_.dwide, .weight = weight(w.fc_weight), .rows = R, .C = C, .OC = 4 * C});
  layernorm_backward(cuda_, {.dresidual = b_.dx,
                             .dweight = grad(w.ln2_weight),
                             .dbias = grad(w.ln2_bias),
                             .dbranch_bias = grad(w.proj_bias),
                             .dout = b_.dh,
                             .x = a.x_mid,
                             .weight = weight(w.ln2_weight),
                             .mean = a.mean2,
                             .rstd = a.rstd2,
                             .rows = R,
                             .C = C,
                             .accumulate = true});
  matmul_backward_weight(cuda_, {.dweight = grad(w.proj_weight), .dout = b_.dx, .in = a.o, .rows = R, .C = C, .OC = C});
  matmul_backward_input(cuda_,
                        {.din = b_.dh, .dout = b_.dx, .weight = weight(w.proj_weight), .rows = R, .C = C, .OC = C});
  attention_backward(cuda_, {.dqkv = b_.dwide,
                             .dout = b_.dh,
                             .out = a.o,
                             .qkv = a.qkv,
                             .stats = a.stats,
                             .B = B,
                             .T = T,
                             .NH = NH,
                             .HS = C / NH});
  bias_backward(cuda_, {.dbias = grad(w.qkv_bias), .dout = b_.dwide, .rows = R, .cols = 3 * C});
  matmul_backward_weight(cuda_,
                         {.dweight = grad(w.qkv_weight), .dout = b_.dwide, .in = a.h1, .rows = R, .C = C, .OC = 3 * C});
  matmul_backward_input(
      cuda_, {.din = b_.dh, .dout = b_.dwide, .weight = weight(w.qkv_weight), .rows = R, .C = C, .OC = 3 * C});
  layernorm_backward(cuda_, {.dresidual = b_.dx,
                             .dweight = grad(w.ln1_weight),
                             .dbias = grad(w.ln1_bias),
                             .dbranch_bias = bias_below,
                             .dout = b_.dh,
                             .x = a.x,
                             .weight = weight(w.ln1_weight),
                             .mean = a.mean1,
                             .rstd = a.rstd1,
                             .rows = R,
                             .C = C,
                             .accumulate = true});
}

// Makes the block's shared activations again from what was kept. The gradients in flight (dx, dh) are not touched.
void GPT2Cuda::recompute(int layer, int B, int T) {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& w = at_.blocks[layer];
  const int C = config_.channels;
  const int64_t R = static_cast<int64_t>(B) * T;
  if (recompute_ == Recompute::gelu) gelu_forward(cuda_, {.out = a.gelu, .in = a.pre, .rows = R, .cols = 4 * C});
  if (recompute_ != Recompute::block || layer == config_.layers - 1) return; // the last block's are still there
  layernorm_forward(cuda_, {.out = a.h1,
                            .residual_out = nullptr,
                            .mean = a.mean1,
                            .rstd = a.rstd1,
                            .residual_in = a.x,
                            .branch = nullptr,
                            .weight = weight(w.ln1_weight),
                            .bias = weight(w.ln1_bias),
                            .rows = R,
                            .C = C});
  block_forward(layer, B, T);
}

} // namespace gpt2
