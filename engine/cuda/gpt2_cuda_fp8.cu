// The same GPT-2 with its matrix products in FP8. Every producer writes what the next product reads, quantized and,
// where that product contracts over tokens, transposed; the residual stream and attention stay in BF16. Codes stand in
// f = b_.fp8 (bytes), all else in BF16; layers_cuda_fp8.cu holds the operations.
#include <cuda_bf16.h>

#include <algorithm>

#include "engine/cuda/gpt2_cuda_model.h"
#include "kernels/ranks.h"

namespace gpt2 {

// ---- forward ----

// From h1's codes in f.h to the MLP's output in b_.branch.
void GPT2Cuda::block_forward_fp8(int layer, int B, int T, Fp8Pass pass) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const Fp8Buffers& f = b_.fp8;
  const auto& [linears, norms, losses] = fp8_->layers;
  const int64_t R = static_cast<int64_t>(B) * T;

  linears.forward(a.qkv, f.h, block.qkv, R);                            // (R, C) -> (R, 3C)
  attention_.forward(a, B, T);                                          // qkv (B, T, 3, NH, HS) -> o (B, T, NH, HS)
  linears.quantize(f.o, a.o, block.proj, R, pass);                      // a pass of its own: docs/decisions.md
  linears.forward(block.ln2.x, f.o, block.proj, R, block.ln2.x_before); // (R, C) -> (R, C), x_mid = x + that
  norms.forward(f.h, block.ln2.again(), R, pass);                       // h2's codes
  const uint8_t* const gelu = linears.fc_gelu(a.pre, f.gelu, f.h, block, R, pass); // (R, C) -> (R, 4C)
  linears.forward(b_.branch, gelu, block.fcproj, R);                               // (R, 4C) -> (R, C)
}

// ---- LM head: the final LayerNorm goes with it, a chunk at a time, so that its transpose is packed by chunk ----

void GPT2Cuda::head_fp8(int64_t R, bool backward, Fp8Pass pass) {
  const LinearLayer lm_head = lm_head_layer();
  const Fp8Buffers& f = b_.fp8;
  const auto& [linears, norms, losses] = fp8_->layers;
  const int64_t chunk = logits_chunk(options_.precision);
  norms.measure_final(f.h_final, final_layernorm_layer(), R, pass); // current scaling: the whole tensor's amax
  for (int64_t row = 0; row < R; row += chunk) {
    const int64_t rows = std::min(chunk, R - row), first = row * config_.channels;
    const Fp8Codes h{f.h_final + first, backward ? f.h_final_t + first : nullptr};
    norms.final_chunk(h, final_layernorm_layer(row), rows, pass); // x_final = x_mid + branch; h_final both ways round
    if (!backward) {
      linears.forward(b_.logits, h.data, lm_head, rows); // (rows, C) -> (rows, Vp)
      losses_.of_chunk(row, rows, false);
      continue;
    }
    // (rows, C) -> (rows, Vp), and what softmax needs of it; softmax - onehot, both ways round
    const SoftmaxPart* const parts = linears.lm_head(b_.logits, f.softmax_parts, h.data, lm_head, rows);
    losses.of_chunk({f.dlogits, f.dlogits_t}, parts, lm_head, row, rows);
    linears.weight_gradient(f.dlogits_t, h.transposed, lm_head, rows); // (Vp, C) += dlogits^T h_final
    linears.input_gradient(b_.dh + first, f.dlogits, lm_head, rows);   // (rows, Vp) -> (rows, C)
  }
}

// ---- backward ----

// Enters with the gradient of the residual stream after the block in b_.dx, and its codes in f.dx and f.dx_t. A product
// over tokens runs after the kernel that makes its activation again. "Bias": that kernel takes its gradient as well.
void GPT2Cuda::block_backward_fp8(int layer, int B, int T, Fp8Pass pass) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const Fp8Buffers& f = b_.fp8;
  const auto& [linears, norms, losses] = fp8_->layers;
  const Fp8Codes dx{f.dx, f.dx_t}, wide{f.wide, f.wide_t};
  float* const qkv_bias = b_.grad + block.qkv.bias;
  const int64_t R = static_cast<int64_t>(B) * T;

  // (R, C) -> (R, 4C), and fc's bias; gelu(pre) again
  linears.fcproj_gelu_gradient(wide, f.gelu_t, b_.dwide, f.dx, a.pre, block, R, pass);
  linears.weight_gradient(f.dx_t, f.gelu_t, block.fcproj, R);  // (C, 4C) += dx^T gelu
  linears.input_gradient(b_.dh, f.wide, block.fc, R);          // (R, 4C) -> (R, C)
  norms.gradient(b_.dx, dx, f.h_t, b_.dh, block.ln2, R, pass); // dx += ...; proj's bias; h2 again
  linears.weight_gradient(f.wide_t, f.h_t, block.fc, R);       // (4C, C) += wide^T h2

  linears.input_gradient(b_.dh, f.dx, block.proj, R);                      // (R, C) -> (R, C)
  linears.quantize_again(f.h_t, a.o, block.proj, R, pass);                 // o^T: forward kept o in BF16 alone
  linears.weight_gradient(f.dx_t, f.h_t, block.proj, R);                   // (C, C) += dx^T o
  attention_.gradient(b_.dwide, nullptr, b_.dh, a, B, T);                  // (R, C) -> (R, 3C)
  linears.quantize_gradient(wide, qkv_bias, b_.dwide, block.qkv, R, pass); // and qkv's bias; a pass of its own
  linears.input_gradient(b_.dh, f.wide, block.qkv, R);                     // (R, 3C) -> (R, C)
  norms.gradient(b_.dx, dx, f.h_t, b_.dh, block.ln1, R, pass);             // dx += ...; fcproj's bias below; h1 again
  linears.weight_gradient(f.wide_t, f.h_t, block.qkv, R);                  // (3C, C) += wide^T h1
}

// Below a block in BF16, a block in FP8 finds its gradient quantized by a pass of its own. The bias gradient is taken.
void GPT2Cuda::hand_down(int layer, int64_t R, Fp8Pass pass) {
  if (!fp8_block(layer - 1)) return;
  const LinearLayer below = linear_layer(layer - 1, Fp8Site::fcproj);
  fp8_->layers.linears.quantize_gradient({b_.fp8.dx, b_.fp8.dx_t}, nullptr, b_.dx, below, R, pass);
}

// ---- weights and calibration ----

void GPT2Cuda::quantize_weights(Fp8Pass pass) {
  fp8_->in_parts = false;
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

// Under current scaling a matrix's scale takes all of it, and all ranks have that only in BF16.
bool GPT2Cuda::codes_travel() const {
  if (!sharded_ || !fp8_) return false;
  const Fp8RecipeState& recipe = fp8_->scaler.recipe();
  return !recipe.resting() && !recipe.measures(Fp8Pass::training, Fp8Role::weight);
}

// The rank's part of a block's matrices, one way round.
void GPT2Cuda::quantize_owned(int layer, const OwnedSlice& slice) {
  const BlockLayers block = block_layers(layer);
  for (const LinearLayer& linear : {block.qkv, block.proj, block.fc, block.fcproj}) {
    const int64_t begin = std::max(linear.weight, slice.offset);
    const int64_t end = std::min(linear.weight + int64_t{linear.OC} * linear.C, slice.offset + slice.count);
    if (begin < end) fp8_->layers.linears.quantize_weight_part(linear, begin, end - begin);
  }
}

// The other way round, from codes that have come.
void GPT2Cuda::receive_block(int layer) {
  const BlockLayers block = block_layers(layer);
  for (const LinearLayer& linear : {block.qkv, block.proj, block.fc, block.fcproj}) {
    transpose_fp8(ranks_->stream(), {.out = b_.fp8.weights_t + linear.weight,
                                     .in = b_.fp8.weights + linear.weight,
                                     .rows = linear.OC,
                                     .cols = linear.C});
  }
}

// The embedding reads the same matrix in BF16, so that is what has come.
void GPT2Cuda::receive_lm_head() {
  const LayerContext arriving{ranks_->stream(), config_, b_};
  LinearsFp8(arriving, fp8_->scaler).quantize_weight(lm_head_layer(), Fp8Pass::training);
}

// Those that are part of other kernels in a training step; the head's, as evaluation has it, on whatever rows hold.
void GPT2Cuda::run_calibrations_products(int64_t R) {
  if (fp8_head()) head_fp8(R, false, Fp8Pass::recomputing);
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (!fp8_block(layer)) continue;
    const BlockLayers block = block_layers(layer);
    fp8_->layers.linears.forward(b_.blocks[layer].pre, b_.fp8.h, block.fc, R);
    fp8_->layers.linears.input_gradient(b_.dwide, b_.fp8.dx, block.fcproj, R);
    return; // the others have the same shapes
  }
}

// One micro-batch in which every tensor's own amax sets its scale; what it computed is thrown away.
void GPT2Cuda::calibrate(int B, int T) {
  quantize_weights(Fp8Pass::calibrating);
  forward_backward(B, T, Fp8Pass::calibrating, Exchange::none);
  fp8_->scaler.end_calibration();
  fp8_->weights_stale = true; // their amax belongs to the step that begins now
}

} // namespace gpt2
