// The same GPT-2 with its matrix products in FP8. Every producer writes what the next product reads, quantised and,
// where that product contracts over tokens, transposed; the residual stream and attention stay in BF16.
#include <cuda_bf16.h>

#include <algorithm>
#include <utility>

#include "engine/model/gpt2_cuda_model.h"
#include "kernels/attention.h"
#include "kernels/cast_fp8.h"
#include "kernels/cross_entropy.h"
#include "kernels/cross_entropy_fp8.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/gelu_fp8.h"
#include "kernels/layernorm.h"
#include "kernels/layernorm_fp8.h"
#include "kernels/matmul_fp8.h"

namespace gpt2 {

namespace {

using enum Fp8Site;
using enum Fp8Role;

} // namespace

// ---- sinks and tensors ----

Fp8Sink GPT2Cuda::sink(int id, uint8_t* data, uint8_t* transposed) const {
  return {.data = data,
          .transposed = transposed,
          .format = recipe_->format(id),
          .meter = b_.fp8.scales.meters + id,
          .silent = silent_};
}

Fp8Tensor GPT2Cuda::codes(int id, const uint8_t* data) const {
  return {.data = data, .format = recipe_->format(id), .meter = b_.fp8.scales.meters + id};
}

// The weight gradient reads the activation's own codes, or, in the e5m2 recipe, an E4M3 copy with a scale of its own.
int GPT2Cuda::activation_for_wgrad(int layer, Fp8Site site) const {
  return recipe_->id(layer, site, recipe_->activation_copy() ? act_t : act);
}

// An activation that backward makes again and writes transposed. Its values were metered in forward, unless the recipe
// counts it as a tensor of its own.
Fp8Sink GPT2Cuda::made_again(int layer, Fp8Site site, uint8_t* transposed) const {
  Fp8Sink out = sink(activation_for_wgrad(layer, site), nullptr, transposed);
  out.silent = silent_ || !recipe_->activation_copy();
  return out;
}

// Delayed scaling: one pass. Current scaling: a first pass for the amax, whose scale the second pass then uses.
template <class Pass>
void GPT2Cuda::produce(int id, Pass&& pass) {
  if (current_scaling_) {
    pass(true);
    const bool has_copy = recipe_->activation_copy() && id % kFp8Roles == static_cast<int>(act);
    fp8_scale_now(cuda_, b_.fp8.scales, id, has_copy);
  }
  pass(false);
}

// ---- forward ----

void GPT2Cuda::forward_fp8(int B, int T) {
  const int64_t R = static_cast<int64_t>(B) * T;
  embedding_forward(cuda_, {.out = b_.blocks[0].x,
                            .tokens = b_.inputs,
                            .wte = weight(at_.wte),
                            .wpe = weight(at_.wpe),
                            .B = B,
                            .T = T,
                            .C = config_.channels});
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (fp8_block(layer)) {
      enter_block_fp8(layer, R);
      block_forward_fp8(layer, B, T);
    } else {
      enter_block(layer, R);
      block_forward(layer, B, T);
    }
  }
}

void GPT2Cuda::enter_block_fp8(int layer, int64_t R) {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& w = at_.blocks[layer];
  const bool first = layer == 0;
  const int h1 = recipe_->id(layer, qkv, act);
  produce(h1, [&](bool) {
    layernorm_forward_fp8(cuda_, {.out = sink(h1, b_.fp8.h, nullptr),
                                  .residual_out = a.x,
                                  .mean = a.mean1,
                                  .rstd = a.rstd1,
                                  .residual_in = first ? a.x : b_.blocks[layer - 1].x_mid,
                                  .branch = first ? nullptr : b_.branch,
                                  .weight = weight(w.ln1_weight),
                                  .bias = weight(w.ln1_bias),
                                  .rows = R,
                                  .C = config_.channels});
  });
}

void GPT2Cuda::block_forward_fp8(int layer, int B, int T) {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& w = at_.blocks[layer];
  const Fp8Buffers& f = b_.fp8;
  const int C = config_.channels, NH = config_.heads;
  const int64_t R = static_cast<int64_t>(B) * T;
  const auto id = [&](Fp8Site site, Fp8Role role) { return recipe_->id(layer, site, role); };

  matmul_forward_fp8(cuda_, {.out = a.qkv,
                             .in = codes(id(qkv, act), f.h),
                             .weight = codes(id(qkv, Fp8Role::weight), f.weights + w.qkv_weight),
                             .bias = weight(w.qkv_bias),
                             .rows = R,
                             .C = C,
                             .OC = 3 * C});
  attention_forward(cuda_, {.out = a.o, .stats = a.stats, .qkv = a.qkv, .B = B, .T = T, .NH = NH, .HS = C / NH});
  produce(id(proj, act), [&](bool meter_only) {
    cast_fp8(cuda_, {.out = sink(id(proj, act), f.o, nullptr),
                     .dbias = nullptr,
                     .in = a.o,
                     .rows = R,
                     .cols = C,
                     .meter_only = meter_only});
  });
  matmul_forward_fp8(cuda_, {.out = b_.branch,
                             .in = codes(id(proj, act), f.o),
                             .weight = codes(id(proj, Fp8Role::weight), f.weights + w.proj_weight),
                             .bias = weight(w.proj_bias),
                             .rows = R,
                             .C = C,
                             .OC = C});
  produce(id(fc, act), [&](bool) {
    layernorm_forward_fp8(cuda_, {.out = sink(id(fc, act), f.h, nullptr),
                                  .residual_out = a.x_mid,
                                  .mean = a.mean2,
                                  .rstd = a.rstd2,
                                  .residual_in = a.x,
                                  .branch = b_.branch,
                                  .weight = weight(w.ln2_weight),
                                  .bias = weight(w.ln2_bias),
                                  .rows = R,
                                  .C = C});
  });
  matmul_forward_fp8(cuda_, {.out = a.pre,
                             .in = codes(id(fc, act), f.h),
                             .weight = codes(id(fc, Fp8Role::weight), f.weights + w.fc_weight),
                             .bias = weight(w.fc_bias),
                             .rows = R,
                             .C = C,
                             .OC = 4 * C});
  produce(id(fcproj, act), [&](bool) {
    gelu_forward_fp8(cuda_, {.out = sink(id(fcproj, act), f.gelu, nullptr), .in = a.pre, .rows = R, .cols = 4 * C});
  });
  matmul_forward_fp8(cuda_, {.out = b_.branch,
                             .in = codes(id(fcproj, act), f.gelu),
                             .weight = codes(id(fcproj, Fp8Role::weight), f.weights + w.fcproj_weight),
                             .bias = weight(w.fcproj_bias),
                             .rows = R,
                             .C = 4 * C,
                             .OC = C});
}

// ---- LM head: the final LayerNorm goes with it, a chunk at a time, so that its transpose is packed by chunk ----

void GPT2Cuda::head_fp8(int64_t R, StepScalars* scalars, bool backward) {
  const Fp8Buffers& f = b_.fp8;
  const int C = config_.channels, Vp = config_.padded_vocab;
  const int h = recipe_->id(0, lm_head, act), h_for_wgrad = activation_for_wgrad(0, lm_head);
  const int wte = recipe_->id(0, lm_head, Fp8Role::weight), dlogits = recipe_->id(0, lm_head, Fp8Role::grad);
  const int64_t chunk = logits_chunk(options_.precision);
  for (int64_t row = 0; row < R; row += chunk) {
    const int64_t rows = std::min(chunk, R - row);
    const int64_t at = row * C;
    const LayerNormForwardFp8 layernorm{
        .out = sink(h, f.h_final + at, backward && !recipe_->activation_copy() ? f.h_final_t + at : nullptr),
        .residual_out = b_.x_final + at,
        .mean = b_.mean_final + row,
        .rstd = b_.rstd_final + row,
        .residual_in = b_.blocks.back().x_mid + at,
        .branch = b_.branch + at,
        .weight = weight(at_.lnf_weight),
        .bias = weight(at_.lnf_bias),
        .rows = rows,
        .C = C};
    produce(h, [&](bool) { layernorm_forward_fp8(cuda_, layernorm); });
    if (backward && recipe_->activation_copy()) {
      LayerNormForwardFp8 copy = layernorm; // the branch is added anew to the same stream: the same values
      copy.out = sink(h_for_wgrad, f.h_final + at, f.h_final_t + at);
      layernorm_forward_fp8(cuda_, copy);
      LayerNormForwardFp8 original = layernorm; // the forward's own codes again
      original.out.silent = true;
      layernorm_forward_fp8(cuda_, original);
    }
    matmul_forward_fp8(cuda_, {.out = b_.logits,
                               .in = codes(h, f.h_final + at),
                               .weight = codes(wte, f.weights + at_.wte),
                               .bias = nullptr,
                               .rows = rows,
                               .C = C,
                               .OC = Vp});
    if (!backward) {
      cross_entropy(cuda_, {.logits = b_.logits,
                            .losses = b_.losses + row,
                            .targets = b_.targets + row,
                            .rows = rows,
                            .vocab = config_.vocab,
                            .padded_vocab = Vp,
                            .write_gradient = false});
      continue;
    }
    Fp8Sink gradient = sink(dlogits, f.dlogits, f.dlogits_t);
    gradient.silent = true; // a static scale
    cross_entropy_fp8(cuda_, {.logits = b_.logits,
                              .losses = b_.losses + row,
                              .dlogits = gradient,
                              .targets = b_.targets + row,
                              .rows = rows,
                              .vocab = config_.vocab,
                              .padded_vocab = Vp});
    matmul_backward_weight_fp8(cuda_, {.dweight = grad(at_.wte),
                                       .dout_t = codes(dlogits, f.dlogits_t),
                                       .in_t = codes(h_for_wgrad, f.h_final_t + at),
                                       .rows = rows,
                                       .C = C,
                                       .OC = Vp});
    matmul_backward_input_fp8(cuda_, {.din = b_.dh + at,
                                      .dout = codes(dlogits, f.dlogits),
                                      .weight_t = codes(wte, f.weights_t + at_.wte),
                                      .rows = rows,
                                      .C = C,
                                      .OC = Vp});
  }
  accumulate_loss(cuda_, {.scalars = scalars, .losses = b_.losses, .targets = b_.targets, .rows = R});
}

// ---- backward ----

void GPT2Cuda::backward_fp8(int B, int T) {
  const int C = config_.channels, last = config_.layers - 1;
  const int64_t R = static_cast<int64_t>(B) * T;
  const int gradient = recipe_->id(last, fcproj, Fp8Role::grad);
  const auto pass = [&](bool meter_only) {
    layernorm_backward_fp8(cuda_,
                           {.dresidual_out = b_.dx,
                            .dresidual_in = nullptr,
                            .dresidual_fp8 = fp8_block(last) ? sink(gradient, b_.fp8.dx, b_.fp8.dx_t) : Fp8Sink{},
                            .out = Fp8Sink{},
                            .dweight = grad(at_.lnf_weight),
                            .dbias = grad(at_.lnf_bias),
                            .dbranch_bias = grad(at_.blocks.back().fcproj_bias),
                            .dout = b_.dh,
                            .x = b_.x_final,
                            .weight = weight(at_.lnf_weight),
                            .bias = weight(at_.lnf_bias),
                            .mean = b_.mean_final,
                            .rstd = b_.rstd_final,
                            .rows = R,
                            .C = C,
                            .meter_only = meter_only});
  };
  if (fp8_block(last))
    produce(gradient, pass);
  else
    pass(false);
  for (int layer = last; layer >= 0; --layer) {
    recompute_fp8(layer, B, T);
    if (fp8_block(layer)) {
      block_backward_fp8(layer, B, T);
    } else {
      block_backward(layer, B, T);
      hand_down(layer, R);
    }
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

// Enters with the gradient of the residual stream after the block in dx, and its codes in f.dx and f.dx_t. A product
// over tokens runs after the kernel that makes its activation again.
void GPT2Cuda::block_backward_fp8(int layer, int B, int T) {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& w = at_.blocks[layer];
  const Fp8Buffers& f = b_.fp8;
  const int C = config_.channels, NH = config_.heads;
  const int64_t R = static_cast<int64_t>(B) * T;
  const auto id = [&](Fp8Site site, Fp8Role role) { return recipe_->id(layer, site, role); };
  const auto wgrad_codes = [&](Fp8Site site, const uint8_t* data) {
    return codes(activation_for_wgrad(layer, site), data);
  };

  matmul_backward_input_fp8(cuda_, {.din = b_.dwide,
                                    .dout = codes(id(fcproj, Fp8Role::grad), f.dx),
                                    .weight_t = codes(id(fcproj, Fp8Role::weight), f.weights_t + w.fcproj_weight),
                                    .rows = R,
                                    .C = 4 * C,
                                    .OC = C});
  produce(id(fc, Fp8Role::grad), [&](bool meter_only) {
    gelu_backward_fp8(cuda_, {.din = sink(id(fc, Fp8Role::grad), f.wide, f.wide_t),
                              .out = made_again(layer, fcproj, f.gelu_t),
                              .dbias = grad(w.fc_bias),
                              .dout = b_.dwide,
                              .in = a.pre,
                              .rows = R,
                              .cols = 4 * C,
                              .meter_only = meter_only});
  });
  matmul_backward_weight_fp8(cuda_, {.dweight = grad(w.fcproj_weight),
                                     .dout_t = codes(id(fcproj, Fp8Role::grad), f.dx_t),
                                     .in_t = wgrad_codes(fcproj, f.gelu_t),
                                     .rows = R,
                                     .C = 4 * C,
                                     .OC = C});
  matmul_backward_input_fp8(cuda_, {.din = b_.dh,
                                    .dout = codes(id(fc, Fp8Role::grad), f.wide),
                                    .weight_t = codes(id(fc, Fp8Role::weight), f.weights_t + w.fc_weight),
                                    .rows = R,
                                    .C = C,
                                    .OC = 4 * C});
  produce(id(proj, Fp8Role::grad), [&](bool meter_only) {
    layernorm_backward_fp8(cuda_, {.dresidual_out = b_.dx_other,
                                   .dresidual_in = b_.dx,
                                   .dresidual_fp8 = sink(id(proj, Fp8Role::grad), f.dx, f.dx_t),
                                   .out = made_again(layer, fc, f.h_t),
                                   .dweight = grad(w.ln2_weight),
                                   .dbias = grad(w.ln2_bias),
                                   .dbranch_bias = grad(w.proj_bias),
                                   .dout = b_.dh,
                                   .x = a.x_mid,
                                   .weight = weight(w.ln2_weight),
                                   .bias = weight(w.ln2_bias),
                                   .mean = a.mean2,
                                   .rstd = a.rstd2,
                                   .rows = R,
                                   .C = C,
                                   .meter_only = meter_only});
  });
  std::swap(b_.dx, b_.dx_other);
  matmul_backward_weight_fp8(cuda_, {.dweight = grad(w.fc_weight),
                                     .dout_t = codes(id(fc, Fp8Role::grad), f.wide_t),
                                     .in_t = wgrad_codes(fc, f.h_t),
                                     .rows = R,
                                     .C = C,
                                     .OC = 4 * C});

  matmul_backward_input_fp8(cuda_, {.din = b_.dh,
                                    .dout = codes(id(proj, Fp8Role::grad), f.dx),
                                    .weight_t = codes(id(proj, Fp8Role::weight), f.weights_t + w.proj_weight),
                                    .rows = R,
                                    .C = C,
                                    .OC = C});
  cast_fp8(cuda_, {.out = made_again(layer, proj, f.h_t), .dbias = nullptr, .in = a.o, .rows = R, .cols = C});
  matmul_backward_weight_fp8(cuda_, {.dweight = grad(w.proj_weight),
                                     .dout_t = codes(id(proj, Fp8Role::grad), f.dx_t),
                                     .in_t = wgrad_codes(proj, f.h_t),
                                     .rows = R,
                                     .C = C,
                                     .OC = C});
  attention_backward(cuda_, {.dqkv = b_.dwide,
                             .dout = b_.dh,
                             .out = a.o,
                             .qkv = a.qkv,
                             .stats = a.stats,
                             .B = B,
                             .T = T,
                             .NH = NH,
                             .HS = C / NH});
  produce(id(qkv, Fp8Role::grad), [&](bool meter_only) {
    cast_fp8(cuda_, {.out = sink(id(qkv, Fp8Role::grad), f.wide, f.wide_t),
                     .dbias = grad(w.qkv_bias),
                     .in = b_.dwide,
                     .rows = R,
                     .cols = 3 * C,
                     .meter_only = meter_only});
  });
  matmul_backward_input_fp8(cuda_, {.din = b_.dh,
                                    .dout = codes(id(qkv, Fp8Role::grad), f.wide),
                                    .weight_t = codes(id(qkv, Fp8Role::weight), f.weights_t + w.qkv_weight),
                                    .rows = R,
                                    .C = C,
                                    .OC = 3 * C});

  // What leaves the block is the gradient of the block below's last projection.
  const bool below = fp8_block(layer - 1);
  const int gradient_below = below ? recipe_->id(layer - 1, fcproj, Fp8Role::grad) : -1;
  const auto leave = [&](bool meter_only) {
    layernorm_backward_fp8(cuda_, {.dresidual_out = b_.dx_other,
                                   .dresidual_in = b_.dx,
                                   .dresidual_fp8 = below ? sink(gradient_below, f.dx, f.dx_t) : Fp8Sink{},
                                   .out = made_again(layer, qkv, f.h_t),
                                   .dweight = grad(w.ln1_weight),
                                   .dbias = grad(w.ln1_bias),
                                   .dbranch_bias = layer > 0 ? grad(at_.blocks[layer - 1].fcproj_bias) : nullptr,
                                   .dout = b_.dh,
                                   .x = a.x,
                                   .weight = weight(w.ln1_weight),
                                   .bias = weight(w.ln1_bias),
                                   .mean = a.mean1,
                                   .rstd = a.rstd1,
                                   .rows = R,
                                   .C = C,
                                   .meter_only = meter_only});
  };
  if (below)
    produce(gradient_below, leave);
  else
    leave(false);
  std::swap(
      b_.dx,
      b_.dx_other); // the second swap: a block leaves the two as it found them, so a captured graph can be replayed
  matmul_backward_weight_fp8(cuda_, {.dweight = grad(w.qkv_weight),
                                     .dout_t = codes(id(qkv, Fp8Role::grad), f.wide_t),
                                     .in_t = wgrad_codes(qkv, f.h_t),
                                     .rows = R,
                                     .C = C,
                                     .OC = 3 * C});
}

// Below a block in BF16, a block in FP8 finds its gradient quantised by a pass of its own.
void GPT2Cuda::hand_down(int layer, int64_t R) {
  if (!fp8_block(layer - 1)) return;
  const int gradient = recipe_->id(layer - 1, fcproj, Fp8Role::grad);
  produce(gradient, [&](bool meter_only) {
    cast_fp8(cuda_, {.out = sink(gradient, b_.fp8.dx, b_.fp8.dx_t),
                     .dbias = nullptr,
                     .in = b_.dx,
                     .rows = R,
                     .cols = config_.channels,
                     .meter_only = meter_only});
  });
}

// A block in BF16 among FP8 ones never keeps LayerNorm's and GELU's outputs; with --recompute block no block keeps
// anything but its input.
void GPT2Cuda::recompute_fp8(int layer, int B, int T) {
  const BlockActivations& a = b_.blocks[layer];
  const BlockOffsets& w = at_.blocks[layer];
  const int C = config_.channels;
  const int64_t R = static_cast<int64_t>(B) * T;
  const bool again = recompute_ == Recompute::block && layer != config_.layers - 1;
  if (fp8_block(layer)) {
    if (!again) return;
    const bool was_silent = std::exchange(silent_, true);
    const bool was_current = std::exchange(current_scaling_, false);
    layernorm_forward_fp8(cuda_, {.out = sink(recipe_->id(layer, qkv, act), b_.fp8.h, nullptr),
                                  .residual_out = nullptr,
                                  .mean = a.mean1,
                                  .rstd = a.rstd1,
                                  .residual_in = a.x,
                                  .branch = nullptr,
                                  .weight = weight(w.ln1_weight),
                                  .bias = weight(w.ln1_bias),
                                  .rows = R,
                                  .C = C});
    block_forward_fp8(layer, B, T);
    silent_ = was_silent;
    current_scaling_ = was_current;
    return;
  }
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
  if (again) return block_forward(layer, B, T);
  layernorm_forward(cuda_, {.out = a.h2,
                            .residual_out = nullptr,
                            .mean = a.mean2,
                            .rstd = a.rstd2,
                            .residual_in = a.x_mid,
                            .branch = nullptr,
                            .weight = weight(w.ln2_weight),
                            .bias = weight(w.ln2_bias),
                            .rows = R,
                            .C = C});
  gelu_forward(cuda_, {.out = a.gelu, .in = a.pre, .rows = R, .cols = 4 * C});
}

// ---- weights and calibration ----

void GPT2Cuda::quantise_weights() {
  const int C = config_.channels;
  const auto quantise = [&](int id, int64_t offset, int64_t rows, int cols) {
    produce(id, [&](bool meter_only) {
      cast_weight_fp8(cuda_, {.out = sink(id, b_.fp8.weights + offset, b_.fp8.weights_t + offset),
                              .master = b_.master + offset,
                              .rows = rows,
                              .cols = cols,
                              .meter_only = meter_only});
    });
  };
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (!fp8_block(layer)) continue;
    const BlockOffsets& w = at_.blocks[layer];
    quantise(recipe_->id(layer, qkv, Fp8Role::weight), w.qkv_weight, 3 * C, C);
    quantise(recipe_->id(layer, proj, Fp8Role::weight), w.proj_weight, C, C);
    quantise(recipe_->id(layer, fc, Fp8Role::weight), w.fc_weight, 4 * C, C);
    quantise(recipe_->id(layer, fcproj, Fp8Role::weight), w.fcproj_weight, C, 4 * C);
  }
  if (options_.fp8.lm_head) quantise(recipe_->id(0, lm_head, Fp8Role::weight), at_.wte, config_.padded_vocab, C);
  weights_stale_ = false;
}

// One micro-batch with current scaling sets every scale; what it computed is thrown away.
void GPT2Cuda::calibrate(int B, int T) {
  const bool was_current = std::exchange(current_scaling_, true);
  quantise_weights();
  forward_backward(B, T);
  fp8_end_calibration(cuda_, b_.fp8.scales);
  current_scaling_ = was_current;
  recipe_->end_calibration();
  weights_stale_ = true; // the amax of the weights belongs to the step that begins now
}

} // namespace gpt2
