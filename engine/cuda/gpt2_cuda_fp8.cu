// GPT-2 with FP8 GEMMs. Every producer kernel writes the next GEMM's operand in FP8, transposed if that GEMM contracts
// over tokens. The residual stream and attention stay in BF16. FP8 values are in f = b_.fp8; layers_cuda_fp8.cu
// launches the kernels.
#include <cuda_bf16.h>

#include <algorithm>

#include "engine/cuda/gpt2_cuda_model.h"
#include "kernels/ranks.h"

namespace gpt2 {

// ---- forward ----

// From h1 (FP8, in f.h) to the MLP's output in b_.branch.
void GPT2Cuda::block_forward_fp8(int layer, int B, int T, Fp8Pass pass) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const Fp8Buffers& f = b_.fp8;
  const auto& [linears, norms, losses] = fp8_->layers;
  const int64_t R = static_cast<int64_t>(B) * T;

  linears.forward(a.qkv, f.h, block.qkv, R);                            // (R, C) -> (R, 3C)
  attention_.forward(a, B, T);                                          // qkv (B, T, 3, NH, HS) -> o (B, T, NH, HS)
  linears.quantize(f.o, a.o, block.proj, R, pass);                      // a separate pass: docs/decisions.md
  linears.forward(block.ln2.x, f.o, block.proj, R, block.ln2.x_before); // (R, C) -> (R, C), x_mid = x + proj
  norms.forward(f.h, block.ln2.without_add(), R, pass);                 // h2 in FP8
  const uint8_t* const gelu = linears.fc_gelu(a.pre, f.gelu, f.h, block, R, pass); // (R, C) -> (R, 4C)
  linears.forward(b_.branch, gelu, block.fcproj, R);                               // (R, 4C) -> (R, C)
}

// ---- LM head: the final LayerNorm runs per chunk too, so that its transpose is contiguous per chunk ----

void GPT2Cuda::head_fp8(int64_t R, bool backward, Fp8Pass pass) {
  const LinearLayer lm_head = lm_head_layer();
  const Fp8Buffers& f = b_.fp8;
  const auto& [linears, norms, losses] = fp8_->layers;
  const int64_t chunk = logits_chunk(options_.precision);
  norms.measure_final(f.h_final, final_layernorm_layer(), R, pass); // current scaling: the whole tensor's amax
  for (int64_t row = 0; row < R; row += chunk) {
    const int64_t rows = std::min(chunk, R - row), first = row * config_.channels;
    const Fp8Values h{f.h_final + first, backward ? f.h_final_t + first : nullptr};
    norms.final_chunk(h, final_layernorm_layer(row), rows, pass); // x_final = x_mid + branch; h_final, h_final^T
    if (!backward) {
      linears.forward(b_.logits, h.data, lm_head, rows); // (rows, C) -> (rows, Vp)
      losses_.of_chunk(row, rows, false);
      continue;
    }
    // (rows, C) -> (rows, Vp) with softmax statistics; then softmax - onehot, row-major and transposed
    const SoftmaxPart* const parts = linears.lm_head(b_.logits, f.softmax_parts, h.data, lm_head, rows);
    losses.of_chunk({f.dlogits, f.dlogits_t}, parts, lm_head, row, rows);
    linears.weight_gradient(f.dlogits_t, h.transposed, lm_head, rows); // (Vp, C) += dlogits^T h_final
    linears.input_gradient(b_.dh + first, f.dlogits, lm_head, rows);   // (rows, Vp) -> (rows, C)
  }
}

// ---- backward ----

// In: the gradient of the residual stream after the block, BF16 in b_.dx, FP8 in f.dx and f.dx_t. A weight gradient
// runs after the kernel that recomputes its activation. "bias": the kernel also computes that bias gradient.
void GPT2Cuda::block_backward_fp8(int layer, int B, int T, Fp8Pass pass) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const Fp8Buffers& f = b_.fp8;
  const auto& [linears, norms, losses] = fp8_->layers;
  const Fp8Values dx{f.dx, f.dx_t}, wide{f.wide, f.wide_t};
  float* const qkv_bias = b_.grad + block.qkv.bias;
  const int64_t R = static_cast<int64_t>(B) * T;

  // (R, C) -> (R, 4C); fc's bias; recomputes gelu(pre)^T
  linears.fcproj_gelu_gradient(wide, f.gelu_t, b_.dwide, f.dx, a.pre, block, R, pass);
  linears.weight_gradient(f.dx_t, f.gelu_t, block.fcproj, R);  // (C, 4C) += dx^T gelu
  linears.input_gradient(b_.dh, f.wide, block.fc, R);          // (R, 4C) -> (R, C)
  norms.gradient(b_.dx, dx, f.h_t, b_.dh, block.ln2, R, pass); // dx += ...; proj's bias; recomputes h2^T
  linears.weight_gradient(f.wide_t, f.h_t, block.fc, R);       // (4C, C) += wide^T h2

  linears.input_gradient(b_.dh, f.dx, block.proj, R);                      // (R, C) -> (R, C)
  linears.quantize_transposed(f.h_t, a.o, block.proj, R, pass);            // o^T: forward saved o in BF16 alone
  linears.weight_gradient(f.dx_t, f.h_t, block.proj, R);                   // (C, C) += dx^T o
  attention_.gradient(b_.dwide, nullptr, b_.dh, a, B, T);                  // (R, C) -> (R, 3C)
  linears.quantize_gradient(wide, qkv_bias, b_.dwide, block.qkv, R, pass); // qkv's bias; a separate pass
  linears.input_gradient(b_.dh, f.wide, block.qkv, R);                     // (R, 3C) -> (R, C)
  norms.gradient(b_.dx, dx, f.h_t, b_.dh, block.ln1, R, pass); // dx += ...; fcproj's bias of the block below; h1^T
  linears.weight_gradient(f.wide_t, f.h_t, block.qkv, R);      // (3C, C) += wide^T h1
}

// A BF16 block leaves dx in BF16: an FP8 block below it needs a separate quantization. Its bias gradient is done.
void GPT2Cuda::quantize_dx_for_block_below(int layer, int64_t R, Fp8Pass pass) {
  if (!fp8_block(layer - 1)) return;
  const LinearLayer below = linear_layer(layer - 1, Fp8Site::fcproj);
  fp8_->layers.linears.quantize_gradient({b_.fp8.dx, b_.fp8.dx_t}, nullptr, b_.dx, below, R, pass);
}

// ---- weights and calibration ----

void GPT2Cuda::quantize_weights(Fp8Pass pass) {
  const LinearsFp8& linears = fp8_->layers.linears;
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (!fp8_block(layer)) continue;
    const BlockLayers block = block_layers(layer);
    linears.quantize_weight(block.qkv, pass);
    linears.quantize_weight(block.proj, pass);
    linears.quantize_weight(block.fc, pass);
    linears.quantize_weight(block.fcproj, pass);
  }
  if (fp8_head()) linears.quantize_weight(lm_head_layer(), pass);
}

// Not under current scaling: a scale needs the whole matrix, and ranks have that in BF16 alone.
bool GPT2Cuda::gathers_fp8_weights() const {
  if (!sharded_ || !fp8_) return false;
  const Fp8RecipeState& recipe = fp8_->scaler.recipe();
  return !recipe.inactive() && !recipe.measures(Fp8Pass::training, Fp8Role::weight);
}

// This rank's part of a block's matrices, row-major.
void GPT2Cuda::quantize_owned(int layer, const OwnedSlice& slice) {
  const BlockLayers block = block_layers(layer);
  for (const LinearLayer& linear : {block.qkv, block.proj, block.fc, block.fcproj}) {
    const int64_t begin = std::max(linear.weight, slice.offset);
    const int64_t end = std::min(linear.weight + int64_t{linear.OC} * linear.C, slice.offset + slice.count);
    if (begin < end) fp8_->layers.linears.quantize_weight_part(linear, begin, end - begin);
  }
}

// Transposes a block's gathered FP8 weights.
void GPT2Cuda::receive_block(int layer) {
  const BlockLayers block = block_layers(layer);
  for (const LinearLayer& linear : {block.qkv, block.proj, block.fc, block.fcproj}) {
    transpose_fp8(ranks_->stream(), {.out = b_.fp8.weights_t + linear.weight,
                                     .in = b_.fp8.weights + linear.weight,
                                     .rows = linear.OC,
                                     .cols = linear.C});
  }
}

// The embedding needs the same matrix in BF16, so ranks gather it in BF16.
void GPT2Cuda::receive_lm_head() {
  const LayerContext on_ranks_stream{ranks_->stream(), config_, b_};
  LinearsFp8(on_ranks_stream, fp8_->scaler).quantize_weight(lm_head_layer(), Fp8Pass::training);
}

// The unfused GEMMs that calibration needs and training does not, and evaluation's head, on arbitrary data.
void GPT2Cuda::run_calibration_gemms(int64_t R) {
  if (fp8_head()) head_fp8(R, false, Fp8Pass::recomputing);
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (!fp8_block(layer)) continue;
    const BlockLayers block = block_layers(layer);
    fp8_->layers.linears.forward(b_.blocks[layer].pre, b_.fp8.h, block.fc, R);
    fp8_->layers.linears.input_gradient(b_.dwide, b_.fp8.dx, block.fcproj, R);
    return; // all blocks have the same shapes
  }
}

// One micro-batch in which every tensor's own amax sets its scale; its gradients are discarded.
void GPT2Cuda::calibrate(int B, int T) {
  quantize_weights(Fp8Pass::calibrating);
  forward_backward(B, T, Fp8Pass::calibrating, Exchange::none);
  fp8_->scaler.end_calibration();
  fp8_->weights = Fp8::Weights::stale; // quantize again, so that their amax counts in the step that begins now
}

} // namespace gpt2
