// The same GPT-2 with its matrix products in FP8. Every producer writes what the next product reads, quantized and,
// where that product contracts over tokens, transposed; the residual stream and attention stay in BF16. Codes stand in
// f = b_.fp8 (bytes), all else in BF16; gpt2_cuda_fp8_ops.cu holds the operations.
#include <cuda_bf16.h>

#include <algorithm>
#include <utility>

#include "engine/cuda/gpt2_cuda_model.h"

namespace gpt2 {

// ---- forward ----

// From h1's codes in f.h to the MLP's output in b_.branch.
void GPT2Cuda::block_forward_fp8(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const Fp8Buffers& f = b_.fp8;
  const int64_t R = static_cast<int64_t>(B) * T;

  linear_fp8(a.qkv, f.h, block.qkv, R);           // (R, C) -> (R, 3C)
  attention(a, B, T);                             // qkv (B, T, 3, NH, HS) -> o (B, T, NH, HS)
  quantize(f.o, a.o, block.proj, R);              // cuDNN made o: a pass of its own
  linear_fp8(b_.branch, f.o, block.proj, R);      // (R, C) -> (R, C)
  layernorm_fp8(f.h, block.ln2, R);               // x_mid = x + branch; h2's codes
  linear_fp8(a.pre, f.h, block.fc, R);            // (R, C) -> (R, 4C)
  gelu_fp8(f.gelu, a.pre, block.fcproj, R);       // (R, 4C)
  linear_fp8(b_.branch, f.gelu, block.fcproj, R); // (R, 4C) -> (R, C)
}

// ---- LM head: the final LayerNorm goes with it, a chunk at a time, so that its transpose is packed by chunk ----

void GPT2Cuda::head_fp8(int64_t R, StepScalars* scalars, bool backward) {
  const LinearLayer lm_head = lm_head_layer();
  const Fp8Buffers& f = b_.fp8;
  const int64_t chunk = logits_chunk(options_.precision);
  for (int64_t row = 0; row < R; row += chunk) {
    const int64_t rows = std::min(chunk, R - row), first = row * config_.channels;
    final_layernorm_fp8(row, rows, backward);                // x_final = x_mid + branch; h_final, h_final_t
    linear_fp8(b_.logits, f.h_final + first, lm_head, rows); // (rows, C) -> (rows, Vp)
    if (!backward) {
      chunk_losses(row, rows, false);
      continue;
    }
    chunk_losses_fp8({f.dlogits, f.dlogits_t}, row, rows);                       // softmax - onehot, both ways round
    linear_weight_gradient_fp8(f.dlogits_t, f.h_final_t + first, lm_head, rows); // (Vp, C) += dlogits^T h_final
    linear_input_gradient_fp8(b_.dh + first, f.dlogits, lm_head, rows);          // (rows, Vp) -> (rows, C)
  }
  sum_losses(scalars, R);
}

// ---- backward ----

// Enters with the gradient of the residual stream after the block in b_.dx, and its codes in f.dx and f.dx_t. A product
// over tokens runs after the kernel that makes its activation again. "Bias": that kernel takes its gradient as well.
void GPT2Cuda::block_backward_fp8(int layer, int B, int T) {
  const BlockLayers block = block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const Fp8Buffers& f = b_.fp8;
  const Fp8Codes dx{f.dx, f.dx_t}, wide{f.wide, f.wide_t};
  const int64_t R = static_cast<int64_t>(B) * T;

  linear_input_gradient_fp8(b_.dwide, f.dx, block.fcproj, R);    // (R, C) -> (R, 4C)
  gelu_gradient_fp8(wide, f.gelu_t, b_.dwide, a.pre, block, R);  // and fc's bias; gelu(pre) again
  linear_weight_gradient_fp8(f.dx_t, f.gelu_t, block.fcproj, R); // (C, 4C) += dx^T gelu
  linear_input_gradient_fp8(b_.dh, f.wide, block.fc, R);         // (R, 4C) -> (R, C)
  layernorm_gradient_fp8(dx, f.h_t, b_.dh, block.ln2, R);        // b_.dx += ...; proj's bias; h2 again
  linear_weight_gradient_fp8(f.wide_t, f.h_t, block.fc, R);      // (4C, C) += wide^T h2

  linear_input_gradient_fp8(b_.dh, f.dx, block.proj, R);                 // (R, C) -> (R, C)
  quantize_again(f.h_t, a.o, block.proj, R);                             // o^T: forward kept o in BF16 alone
  linear_weight_gradient_fp8(f.dx_t, f.h_t, block.proj, R);              // (C, C) += dx^T o
  attention_gradient(b_.dwide, b_.dh, a, B, T);                          // (R, C) -> (R, 3C)
  quantize_gradient(wide, grad(block.qkv.bias), b_.dwide, block.qkv, R); // and qkv's bias; a pass of its own
  linear_input_gradient_fp8(b_.dh, f.wide, block.qkv, R);                // (R, 3C) -> (R, C)
  layernorm_gradient_fp8(dx, f.h_t, b_.dh, block.ln1, R);                // b_.dx += ...; fcproj's bias below; h1 again
  linear_weight_gradient_fp8(f.wide_t, f.h_t, block.qkv, R);             // (3C, C) += wide^T h1
}

// Below a block in BF16, a block in FP8 finds its gradient quantized by a pass of its own. The bias gradient is taken.
void GPT2Cuda::hand_down(int layer, int64_t R) {
  if (!fp8_block(layer - 1)) return;
  quantize_gradient({b_.fp8.dx, b_.fp8.dx_t}, nullptr, b_.dx, linear_layer(layer - 1, Fp8Site::fcproj), R);
}

// The scales of forward, so the same codes, and no trace in the meters.
void GPT2Cuda::recompute_fp8(int layer, int B, int T) {
  const bool was_silent = std::exchange(silent_, true);
  const bool was_current = std::exchange(current_scaling_, false);
  layernorm_fp8(b_.fp8.h, block_layers(layer).ln1.again(), static_cast<int64_t>(B) * T);
  block_forward_fp8(layer, B, T);
  silent_ = was_silent;
  current_scaling_ = was_current;
}

// ---- weights and calibration ----

void GPT2Cuda::quantize_weights() {
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (!fp8_block(layer)) continue;
    const BlockLayers block = block_layers(layer);
    quantize_weight(block.qkv);
    quantize_weight(block.proj);
    quantize_weight(block.fc);
    quantize_weight(block.fcproj);
  }
  if (options_.fp8.lm_head) quantize_weight(lm_head_layer());
  weights_stale_ = false;
}

// One micro-batch with current scaling sets every scale; what it computed is thrown away.
void GPT2Cuda::calibrate(int B, int T) {
  const bool was_current = std::exchange(current_scaling_, true);
  quantize_weights();
  forward_backward(B, T);
  fp8_end_calibration(cuda_, b_.fp8.scales);
  current_scaling_ = was_current;
  recipe_->end_calibration();
  weights_stale_ = true; // the amax of the weights belongs to the step that begins now
}

} // namespace gpt2
