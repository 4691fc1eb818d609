#include "engine/cuda/layers_cuda.h"

#include <cuda_bf16.h>

#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/gemm.h"
#include "kernels/layernorm.h"
#include "kernels/layernorm_backward.h"
#include "kernels/optimizer.h"
#include "kernels/sm90/attention.h"

namespace gpt2 {

// ---- linear layers ----

void Linears::forward(bf16* out, const bf16* in, const LinearLayer& layer, int64_t R) const {
  gemm_forward(at_.cuda, {.out = out,
                          .in = in,
                          .weight = at_.weight(layer.weight),
                          .bias = at_.bias(layer),
                          .rows = R,
                          .C = layer.C,
                          .OC = layer.OC});
}

void Linears::forward_gelu(bf16* out, bf16* pre, const bf16* in, const LinearLayer& layer, int64_t R,
                           bool fused) const {
  if (!fused) {
    forward(pre, in, layer, R);
    gelu(out, pre, R);
    return;
  }
  gemm_forward_gelu(at_.cuda, {.out = out,
                               .pre = pre,
                               .in = in,
                               .weight = at_.weight(layer.weight),
                               .bias = at_.bias(layer),
                               .rows = R,
                               .C = layer.C,
                               .OC = layer.OC});
}

void Linears::input_gradient(bf16* din, const bf16* dout, const LinearLayer& layer, int64_t R) const {
  gemm_backward_input(
      at_.cuda,
      {.din = din, .dout = dout, .weight = at_.weight(layer.weight), .rows = R, .C = layer.C, .OC = layer.OC});
}

void Linears::weight_gradient(const bf16* dout, const bf16* in, const LinearLayer& layer, int64_t R) const {
  gemm_backward_weight(
      at_.cuda, {.dweight = at_.grad(layer.weight), .dout = dout, .in = in, .rows = R, .C = layer.C, .OC = layer.OC});
}

void Linears::gelu(bf16* out, const bf16* pre, int64_t R) const {
  gelu_forward(at_.cuda, {.out = out, .in = pre, .rows = R, .cols = 4 * at_.config.channels});
}

void Linears::gelu_gradient(bf16* gradient, const bf16* pre, const LinearLayer& fc, int64_t R) const {
  gelu_backward(at_.cuda,
                {.din = gradient, .dbias = at_.grad(fc.bias), .dout = gradient, .in = pre, .rows = R, .cols = fc.OC});
}

// ---- LayerNorms ----

void LayerNorms::forward(bf16* out, const LayerNormLayer& norm, int64_t R) const {
  layernorm_forward(at_.cuda, layernorm_arguments<LayerNormForward<bf16>>(at_, out, norm, R));
}

void LayerNorms::gradient(bf16* dx, const bf16* dout, const LayerNormLayer& norm, int64_t R) const {
  layernorm_backward(at_.cuda, {.dresidual = dx,
                                .dweight = at_.grad(norm.weight),
                                .dbias = at_.grad(norm.bias),
                                .dbranch_bias = norm.adds ? at_.grad(norm.adds->bias) : nullptr,
                                .dout = dout,
                                .x = norm.x,
                                .weight = at_.vector(norm.weight),
                                .mean = norm.mean,
                                .rstd = norm.rstd,
                                .rows = R,
                                .C = at_.config.channels,
                                .accumulate = !norm.is_final()});
}

// ---- attention ----

bool Attention::uses_sm90_kernels(int B, int T) const {
  const CudaDevice& device = *at_.cuda.device;
  return sm90::can_implement_attention(device.sm90_kernels, device.options.attention, B, T, at_.config.head_dim());
}

void Attention::forward(const BlockActivations& a, int B, int T) const {
  const GPT2Config& config = at_.config;
  const AttentionForward<bf16> args{.out = a.o,
                                    .stats = a.stats,
                                    .qkv = a.qkv,
                                    .B = B,
                                    .T = T,
                                    .NH = config.heads,
                                    .HS = config.head_dim(),
                                    .documents = {at_.b.document_begin, at_.b.document_end}};
  return uses_sm90_kernels(B, T) ? sm90::attention_forward(at_.cuda, args) : attention_forward(at_.cuda, args);
}

void Attention::gradient(bf16* dqkv, float* dbias, const bf16* dout, const BlockActivations& a, int B, int T) const {
  const AttentionBackward<bf16> args{.dqkv = dqkv,
                                     .dout = dout,
                                     .out = a.o,
                                     .qkv = a.qkv,
                                     .stats = a.stats,
                                     .B = B,
                                     .T = T,
                                     .NH = at_.config.heads,
                                     .HS = at_.config.head_dim(),
                                     .documents = {at_.b.document_begin, at_.b.document_end}};
  const bool hopper = uses_sm90_kernels(B, T),
             fused_bias = hopper && dbias && sm90::can_fuse_bias_gradient(at_.cuda, args);
  if (hopper)
    sm90::attention_backward(at_.cuda, args, fused_bias ? dbias : nullptr);
  else
    attention_backward(at_.cuda, args);
  if (dbias && !fused_bias)
    bias_backward(at_.cuda, {.dbias = dbias, .dout = dqkv, .rows = int64_t{B} * T, .cols = 3 * at_.config.channels});
}

// ---- embedding ----

void Embedding::forward(bf16* x, int B, int T) const {
  embedding_forward(at_.cuda, {.out = x,
                               .tokens = at_.b.inputs,
                               .wte = at_.weight(wte_),
                               .wpe = at_.weight(wpe_),
                               .B = B,
                               .T = T,
                               .C = at_.config.channels,
                               .positions = at_.b.positions});
}

void Embedding::gradient(const bf16* dx, int B, int T) const {
  embedding_backward(at_.cuda, {.dwte = at_.grad(wte_),
                                .dwpe = at_.grad(wpe_),
                                .dout = dx,
                                .tokens = at_.b.inputs,
                                .B = B,
                                .T = T,
                                .C = at_.config.channels,
                                .vocab = at_.config.vocab,
                                .positions = at_.b.positions});
}

// ---- losses ----

void Losses::of_chunk(int64_t row, int64_t rows, bool write_gradient) const {
  cross_entropy(at_.cuda, {.logits = at_.b.logits,
                           .losses = at_.b.losses + row,
                           .targets = at_.b.targets + row,
                           .rows = rows,
                           .vocab = at_.config.vocab,
                           .padded_vocab = at_.config.padded_vocab,
                           .write_gradient = write_gradient});
}

void Losses::accumulate(StepSums* sums, int64_t R) const {
  accumulate_loss(at_.cuda, {.sums = sums, .losses = at_.b.losses, .targets = at_.b.targets, .rows = R});
}

} // namespace gpt2
