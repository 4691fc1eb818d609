// The operations of gpt2_cuda_fp8.cu, each said once. What names a tensor in the recipe (block, site, role) gives its
// format and its meter; which buffer holds its codes is the caller's choice.
#include <cuda_bf16.h>

#include <utility>

#include "engine/cuda/gpt2_cuda_model.h"
#include "kernels/cast_fp8.h"
#include "kernels/cross_entropy_fp8.h"
#include "kernels/gelu_fp8.h"
#include "kernels/layernorm_fp8.h"
#include "kernels/matmul_fp8.h"

namespace gpt2 {

// ---- sinks and tensors ----

int GPT2Cuda::fp8_id(const LinearLayer& layer, Fp8Role role) const {
  return recipe_->id(layer.layer, layer.site, role);
}

// The weight gradient reads the activation's own codes, or, in the e5m2 recipe, an E4M3 copy with a scale of its own.
int GPT2Cuda::activation_for_weight_gradient(const LinearLayer& layer) const {
  return fp8_id(layer, recipe_->activation_copy() ? Fp8Role::act_t : Fp8Role::act);
}

Fp8Sink GPT2Cuda::sink(int id, Fp8Codes codes) const {
  return {.data = codes.data,
          .transposed = codes.transposed,
          .format = recipe_->format(id),
          .meter = b_.fp8.scales.meters + id,
          .silent = silent_};
}

// An activation that backward makes again and writes transposed. Its values were metered in forward, unless the recipe
// counts it as a tensor of its own.
Fp8Sink GPT2Cuda::made_again(const LinearLayer& layer, uint8_t* transposed) const {
  Fp8Sink out = sink(activation_for_weight_gradient(layer), {nullptr, transposed});
  out.silent = silent_ || !recipe_->activation_copy();
  return out;
}

Fp8Tensor GPT2Cuda::tensor(int id, const uint8_t* data) const {
  return {.data = data, .format = recipe_->format(id), .meter = b_.fp8.scales.meters + id};
}

// Delayed scaling: one pass. Current scaling: a first pass for the amax, whose scale the second pass then uses.
template <class Pass>
void GPT2Cuda::produce(int id, Pass&& pass) {
  if (current_scaling_) {
    pass(true);
    const bool has_copy = recipe_->activation_copy() && recipe_->name(id).role == Fp8Role::act;
    fp8_scale_now(cuda_, b_.fp8.scales, id, has_copy);
  }
  pass(false);
}

// ---- linear layer ----

void GPT2Cuda::linear_fp8(bf16* out, const uint8_t* in, const LinearLayer& layer, int64_t R) {
  matmul_forward_fp8(cuda_, {.out = out,
                             .in = tensor(fp8_id(layer, Fp8Role::act), in),
                             .weight = tensor(fp8_id(layer, Fp8Role::weight), b_.fp8.weights + layer.weight),
                             .bias = bias(layer),
                             .rows = R,
                             .C = layer.C,
                             .OC = layer.OC});
}

void GPT2Cuda::linear_input_gradient_fp8(bf16* din, const uint8_t* dout, const LinearLayer& layer, int64_t R) {
  matmul_backward_input_fp8(cuda_, {.din = din,
                                    .dout = tensor(fp8_id(layer, Fp8Role::grad), dout),
                                    .weight_t = tensor(fp8_id(layer, Fp8Role::weight), b_.fp8.weights_t + layer.weight),
                                    .rows = R,
                                    .C = layer.C,
                                    .OC = layer.OC});
}

void GPT2Cuda::linear_weight_gradient_fp8(const uint8_t* dout_t, const uint8_t* in_t, const LinearLayer& layer,
                                          int64_t R) {
  matmul_backward_weight_fp8(cuda_, {.dweight = grad(layer.weight),
                                     .dout_t = tensor(fp8_id(layer, Fp8Role::grad), dout_t),
                                     .in_t = tensor(activation_for_weight_gradient(layer), in_t),
                                     .rows = R,
                                     .C = layer.C,
                                     .OC = layer.OC});
}

// ---- quantization as a pass of its own ----

void GPT2Cuda::quantize(uint8_t* out, const bf16* in, const LinearLayer& layer, int64_t R) {
  const int id = fp8_id(layer, Fp8Role::act);
  produce(id, [&](bool meter_only) {
    cast_fp8(cuda_, {.out = sink(id, {out, nullptr}),
                     .dbias = nullptr,
                     .in = in,
                     .rows = R,
                     .cols = layer.C,
                     .meter_only = meter_only});
  });
}

void GPT2Cuda::quantize_again(uint8_t* out_t, const bf16* in, const LinearLayer& layer, int64_t R) {
  cast_fp8(cuda_, {.out = made_again(layer, out_t), .dbias = nullptr, .in = in, .rows = R, .cols = layer.C});
}

void GPT2Cuda::quantize_gradient(Fp8Codes out, float* dbias, const bf16* dout, const LinearLayer& layer, int64_t R) {
  const int id = fp8_id(layer, Fp8Role::grad);
  produce(id, [&](bool meter_only) {
    cast_fp8(cuda_,
             {.out = sink(id, out), .dbias = dbias, .in = dout, .rows = R, .cols = layer.OC, .meter_only = meter_only});
  });
}

void GPT2Cuda::quantize_weight(const LinearLayer& layer) {
  const int id = fp8_id(layer, Fp8Role::weight);
  produce(id, [&](bool meter_only) {
    cast_weight_fp8(cuda_, {.out = sink(id, {b_.fp8.weights + layer.weight, b_.fp8.weights_t + layer.weight}),
                            .master = b_.master + layer.weight,
                            .rows = layer.OC,
                            .cols = layer.C,
                            .meter_only = meter_only});
  });
}

// ---- LayerNorm ----

void GPT2Cuda::layernorm_into(Fp8Sink out, const LayerNormLayer& norm, int64_t R) {
  layernorm_forward_fp8(cuda_, layernorm_arguments<LayerNormForwardFp8>(out, norm, R));
}

void GPT2Cuda::layernorm_fp8(uint8_t* out, const LayerNormLayer& norm, int64_t R) {
  const int id = fp8_id(norm.feeds, Fp8Role::act);
  produce(id, [&](bool) { layernorm_into(sink(id, {out, nullptr}), norm, R); });
}

// A chunk of the final LayerNorm: h_final, and h_final_t if there will be a backward pass. Where the recipe counts the
// transpose as a tensor of its own (E4M3 besides E5M2), it is written with that one's scale; that pass overwrites
// h_final, so a third puts the forward's own codes back. All of them add the same branch to the same stream.
void GPT2Cuda::final_layernorm_fp8(int64_t row, int64_t rows, bool backward) {
  const LayerNormLayer norm = final_layernorm_layer(row);
  const int64_t first = row * config_.channels;
  const Fp8Codes h{b_.fp8.h_final + first, b_.fp8.h_final_t + first};
  const bool copy = backward && recipe_->activation_copy();
  const Fp8Codes forward{h.data, backward && !copy ? h.transposed : nullptr};
  const int id = fp8_id(norm.feeds, Fp8Role::act);
  produce(id, [&](bool) { layernorm_into(sink(id, forward), norm, rows); });
  if (!copy) return;
  layernorm_into(sink(activation_for_weight_gradient(norm.feeds), h), norm, rows);
  Fp8Sink again = sink(id, forward);
  again.silent = true;
  layernorm_into(again, norm, rows);
}

// In place in b_.dx: current scaling's first pass only meters, so the second one still finds what it adds to.
void GPT2Cuda::layernorm_gradient_fp8(Fp8Codes gradient, uint8_t* out_t, const bf16* dout, const LayerNormLayer& norm,
                                      int64_t R) {
  const bool quantized = norm.adds && fp8_block(norm.adds->layer);
  const int id = quantized ? fp8_id(*norm.adds, Fp8Role::grad) : -1;
  const auto pass = [&](bool meter_only) {
    layernorm_backward_fp8(cuda_, {.dresidual_out = b_.dx,
                                   .dresidual_in = norm.is_final() ? nullptr : b_.dx, // the gradient begins there
                                   .dresidual_fp8 = quantized ? sink(id, gradient) : Fp8Sink{},
                                   .out = out_t ? made_again(norm.feeds, out_t) : Fp8Sink{},
                                   .dweight = grad(norm.weight),
                                   .dbias = grad(norm.bias),
                                   .dbranch_bias = norm.adds ? grad(norm.adds->bias) : nullptr,
                                   .dout = dout,
                                   .x = norm.x,
                                   .weight = weight(norm.weight),
                                   .bias = weight(norm.bias),
                                   .mean = norm.mean,
                                   .rstd = norm.rstd,
                                   .rows = R,
                                   .C = config_.channels,
                                   .meter_only = meter_only});
  };
  if (quantized)
    produce(id, pass);
  else
    pass(false);
}

// ---- GELU ----

void GPT2Cuda::gelu_fp8(uint8_t* out, const bf16* in, const LinearLayer& fcproj, int64_t R) {
  const int id = fp8_id(fcproj, Fp8Role::act);
  produce(id, [&](bool) {
    gelu_forward_fp8(cuda_, {.out = sink(id, {out, nullptr}), .in = in, .rows = R, .cols = fcproj.C});
  });
}

void GPT2Cuda::gelu_gradient_fp8(Fp8Codes gradient, uint8_t* out_t, const bf16* dout, const bf16* pre,
                                 const BlockLayers& block, int64_t R) {
  const int id = fp8_id(block.fc, Fp8Role::grad);
  produce(id, [&](bool meter_only) {
    gelu_backward_fp8(cuda_, {.din = sink(id, gradient),
                              .out = made_again(block.fcproj, out_t),
                              .dbias = grad(block.fc.bias),
                              .dout = dout,
                              .in = pre,
                              .rows = R,
                              .cols = block.fc.OC,
                              .meter_only = meter_only});
  });
}

// ---- loss ----

void GPT2Cuda::chunk_losses_fp8(Fp8Codes dlogits, int64_t row, int64_t rows) {
  Fp8Sink gradient = sink(fp8_id(lm_head_layer(), Fp8Role::grad), dlogits);
  gradient.silent = true; // a static scale
  cross_entropy_fp8(cuda_, {.logits = b_.logits,
                            .losses = b_.losses + row,
                            .dlogits = gradient,
                            .targets = b_.targets + row,
                            .rows = rows,
                            .first_row = row,
                            .vocab = config_.vocab,
                            .padded_vocab = config_.padded_vocab});
}

} // namespace gpt2
