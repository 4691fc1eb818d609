// The operations of gpt2_cuda.cu, each said once: from the layer and the tensors in hand to the kernel's arguments.
#include <cuda_bf16.h>

#include "engine/cuda/gpt2_cuda_model.h"
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layernorm.h"
#include "kernels/matmul.h"

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

const bf16* GPT2Cuda::bias(const LinearLayer& layer) const {
  return layer.bias == LinearLayer::kNoBias ? nullptr : weight(layer.bias);
}

// ---- embedding ----

void GPT2Cuda::embed(int B, int T) {
  embedding_forward(cuda_, {.out = b_.blocks[0].x,
                            .tokens = b_.inputs,
                            .wte = weight(at_.wte),
                            .wpe = weight(at_.wpe),
                            .B = B,
                            .T = T,
                            .C = config_.channels});
}

void GPT2Cuda::embed_gradient(int B, int T) {
  embedding_backward(cuda_, {.dwte = grad(at_.wte),
                             .dwpe = grad(at_.wpe),
                             .dout = b_.dx,
                             .tokens = b_.inputs,
                             .B = B,
                             .T = T,
                             .C = config_.channels,
                             .vocab = config_.vocab});
}

// ---- linear layer ----

void GPT2Cuda::linear(bf16* out, const bf16* in, const LinearLayer& layer, int64_t R) {
  matmul_forward(cuda_, {.out = out,
                         .in = in,
                         .weight = weight(layer.weight),
                         .bias = bias(layer),
                         .rows = R,
                         .C = layer.C,
                         .OC = layer.OC});
}

void GPT2Cuda::linear_gelu(bf16* out, bf16* pre, const bf16* in, const LinearLayer& layer, int64_t R) {
  if (!fuse_gelu_) {
    linear(pre, in, layer, R);
    gelu(out, pre, R);
    return;
  }
  matmul_forward_gelu(cuda_, {.out = out,
                              .pre = pre,
                              .in = in,
                              .weight = weight(layer.weight),
                              .bias = bias(layer),
                              .rows = R,
                              .C = layer.C,
                              .OC = layer.OC});
}

void GPT2Cuda::linear_input_gradient(bf16* din, const bf16* dout, const LinearLayer& layer, int64_t R) {
  matmul_backward_input(
      cuda_, {.din = din, .dout = dout, .weight = weight(layer.weight), .rows = R, .C = layer.C, .OC = layer.OC});
}

void GPT2Cuda::linear_weight_gradient(const bf16* dout, const bf16* in, const LinearLayer& layer, int64_t R) {
  matmul_backward_weight(
      cuda_, {.dweight = grad(layer.weight), .dout = dout, .in = in, .rows = R, .C = layer.C, .OC = layer.OC});
}

void GPT2Cuda::linear_bias_gradient(const bf16* dout, const LinearLayer& layer, int64_t R) {
  bias_backward(cuda_, {.dbias = grad(layer.bias), .dout = dout, .rows = R, .cols = layer.OC});
}

// ---- LayerNorm ----

void GPT2Cuda::layernorm(bf16* out, const LayerNormLayer& norm, int64_t R) {
  layernorm_forward(cuda_, layernorm_arguments<LayerNormForward<bf16>>(out, norm, R));
}

void GPT2Cuda::layernorm_gradient(bf16* dx, const bf16* dout, const LayerNormLayer& norm, int64_t R) {
  layernorm_backward(cuda_, {.dresidual = dx,
                             .dweight = grad(norm.weight),
                             .dbias = grad(norm.bias),
                             .dbranch_bias = norm.adds ? grad(norm.adds->bias) : nullptr,
                             .dout = dout,
                             .x = norm.x,
                             .weight = weight(norm.weight),
                             .mean = norm.mean,
                             .rstd = norm.rstd,
                             .rows = R,
                             .C = config_.channels,
                             .accumulate = !norm.is_final()});
}

// ---- attention and GELU ----

void GPT2Cuda::attention(const BlockActivations& a, int B, int T) {
  attention_forward(
      cuda_,
      {.out = a.o, .stats = a.stats, .qkv = a.qkv, .B = B, .T = T, .NH = config_.heads, .HS = config_.head_dim()});
}

void GPT2Cuda::attention_gradient(bf16* dqkv, const bf16* dout, const BlockActivations& a, int B, int T) {
  attention_backward(cuda_, {.dqkv = dqkv,
                             .dout = dout,
                             .out = a.o,
                             .qkv = a.qkv,
                             .stats = a.stats,
                             .B = B,
                             .T = T,
                             .NH = config_.heads,
                             .HS = config_.head_dim()});
}

void GPT2Cuda::gelu(bf16* out, const bf16* in, int64_t R) {
  gelu_forward(cuda_, {.out = out, .in = in, .rows = R, .cols = 4 * config_.channels});
}

void GPT2Cuda::gelu_gradient(bf16* gradient, const bf16* pre, const LinearLayer& fc, int64_t R) {
  gelu_backward(cuda_,
                {.din = gradient, .dbias = grad(fc.bias), .dout = gradient, .in = pre, .rows = R, .cols = fc.OC});
}

// ---- loss ----

void GPT2Cuda::chunk_losses(int64_t row, int64_t rows, bool write_gradient) {
  cross_entropy(cuda_, {.logits = b_.logits,
                        .losses = b_.losses + row,
                        .targets = b_.targets + row,
                        .rows = rows,
                        .vocab = config_.vocab,
                        .padded_vocab = config_.padded_vocab,
                        .write_gradient = write_gradient});
}

void GPT2Cuda::sum_losses(StepScalars* scalars, int64_t R) {
  accumulate_loss(cuda_, {.scalars = scalars, .losses = b_.losses, .targets = b_.targets, .rows = R});
}

} // namespace gpt2
