#include "engine/cuda/layers_cuda_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cast_fp8.h"
#include "kernels/cross_entropy_fp8.h"
#include "kernels/gelu_fp8.h"
#include "kernels/gemm_fp8.h"
#include "kernels/layernorm_backward.h"
#include "kernels/layernorm_fp8.h"
#include "kernels/sm90/lm_head_fp8.h"
#include "kernels/sm90/mlp_fp8.h"

namespace gpt2 {

// ---- linear layers ----

void LinearsFp8::forward(bf16* out, const uint8_t* in, const LinearLayer& layer, int64_t R,
                         const bf16* residual) const {
  gemm_forward_fp8(at_.cuda, {.out = out,
                              .in = scaler_.tensor(layer, Fp8Role::act, in),
                              .weight = scaler_.tensor(layer, Fp8Role::weight, at_.b.fp8.weights + layer.weight),
                              .bias = at_.bias(layer),
                              .rows = R,
                              .C = layer.C,
                              .OC = layer.OC,
                              .residual = residual});
}

void LinearsFp8::input_gradient(bf16* din, const uint8_t* dout, const LinearLayer& layer, int64_t R) const {
  gemm_backward_input_fp8(at_.cuda,
                          {.din = din,
                           .dout = scaler_.tensor(layer, Fp8Role::grad, dout),
                           .weight_t = scaler_.tensor(layer, Fp8Role::weight, at_.b.fp8.weights_t + layer.weight),
                           .rows = R,
                           .C = layer.C,
                           .OC = layer.OC});
}

void LinearsFp8::weight_gradient(const uint8_t* dout_t, const uint8_t* in_t, const LinearLayer& layer,
                                 int64_t R) const {
  gemm_backward_weight_fp8(at_.cuda, {.dweight = at_.grad(layer.weight),
                                      .dout_t = scaler_.tensor(layer, Fp8Role::grad, dout_t),
                                      .in_t = scaler_.activation_for_weight_gradient(layer, in_t),
                                      .rows = R,
                                      .C = layer.C,
                                      .OC = layer.OC});
}

// ---- quantization as a separate pass ----

void LinearsFp8::quantize(uint8_t* out, const bf16* in, const LinearLayer& layer, int64_t R, Fp8Pass pass) const {
  scaler_.produce(layer, Fp8Role::act, {out, nullptr}, pass, [&](const Fp8Output& output) {
    cast_fp8(at_.cuda, {.out = output, .dbias = nullptr, .in = in, .rows = R, .cols = layer.C});
  });
}

void LinearsFp8::quantize_transposed(uint8_t* out_t, const bf16* in, const LinearLayer& layer, int64_t R,
                                     Fp8Pass pass) const {
  cast_fp8(
      at_.cuda,
      {.out = scaler_.recomputed_output(layer, out_t, pass), .dbias = nullptr, .in = in, .rows = R, .cols = layer.C});
}

void LinearsFp8::quantize_gradient(Fp8Values out, float* dbias, const bf16* dout, const LinearLayer& layer, int64_t R,
                                   Fp8Pass pass) const {
  scaler_.produce(layer, Fp8Role::grad, out, pass, [&](const Fp8Output& output) {
    cast_fp8(at_.cuda, {.out = output, .dbias = dbias, .in = dout, .rows = R, .cols = layer.OC});
  });
}

void LinearsFp8::quantize_weight(const LinearLayer& layer, Fp8Pass pass) const {
  const Fp8Values values{at_.b.fp8.weights + layer.weight,
                         at_.b.fp8.weights_t ? at_.b.fp8.weights_t + layer.weight : nullptr};
  scaler_.produce(layer, Fp8Role::weight, values, pass, [&](const Fp8Output& output) {
    cast_fp8(at_.cuda,
             {.out = output, .dbias = nullptr, .in = at_.weight(layer.weight), .rows = layer.OC, .cols = layer.C});
  });
}

// As a matrix with at least 16 rows of 16 to 1024 columns: count is a multiple of 256.
void LinearsFp8::quantize_weight_part(const LinearLayer& layer, int64_t offset, int64_t count) const {
  int cols = 1024;
  while (count % (16 * cols) != 0) cols /= 2;
  const Fp8Output output =
      scaler_.output(layer, Fp8Role::weight, {at_.b.fp8.weights + offset, nullptr}, Fp8Pass::training);
  cast_fp8(at_.cuda, {.out = output, .dbias = nullptr, .in = at_.weight(offset), .rows = count / cols, .cols = cols});
}

// ---- GELU with fc and fcproj ----

// Current scaling needs the values before quantization, so a separate pass. Forward, recomputation and backward must
// agree: the answer depends on the step, not on the pass.
bool LinearsFp8::fused(const BlockLayers& block, int64_t R) const {
  const Fp8RecipeState& recipe = scaler_.recipe();
  const auto measured = [&](Fp8Role role) { return recipe.measures(Fp8Pass::training, role); };
  return can_fuse_mlp_fp8(*at_.cuda.device, R, block.fc.C, block.fc.OC) && !recipe.calibration_due() &&
         !measured(Fp8Role::act) && !measured(Fp8Role::grad) &&
         format_of(recipe.options().format, Fp8Role::act) == Fp8Format::e4m3;
}

// The fused kernel saves GELU's FP8 values and then its slopes for backward, in the memory of the BF16 `pre`.
const uint8_t* LinearsFp8::fc_gelu(bf16* pre, uint8_t* gelu, const uint8_t* in, const BlockLayers& block, int64_t R,
                                   Fp8Pass pass) const {
  if (fused(block, R)) {
    auto* const values = reinterpret_cast<uint8_t*>(pre);
    fc_gelu_fp8(at_.cuda, {.gelu = scaler_.output(block.fcproj, Fp8Role::act, {values, nullptr}, pass),
                           .slope = values + R * block.fc.OC,
                           .in = scaler_.tensor(block.fc, Fp8Role::act, in),
                           .weight = scaler_.tensor(block.fc, Fp8Role::weight, at_.b.fp8.weights + block.fc.weight),
                           .bias = at_.bias(block.fc),
                           .rows = R,
                           .C = block.fc.C,
                           .OC = block.fc.OC});
    return values;
  }
  forward(pre, in, block.fc, R);
  scaler_.produce(block.fcproj, Fp8Role::act, {gelu, nullptr}, pass, [&](const Fp8Output& out) {
    gelu_forward_fp8(at_.cuda, {.out = out, .in = pre, .rows = R, .cols = block.fc.OC});
  });
  return gelu;
}

void LinearsFp8::fcproj_gelu_gradient(Fp8Values dpre, uint8_t* gelu_t, bf16* dgelu, const uint8_t* dout,
                                      const bf16* pre, const BlockLayers& block, int64_t R, Fp8Pass pass) const {
  if (fused(block, R)) {
    const auto* const values = reinterpret_cast<const uint8_t*>(pre);
    const uint8_t* const weight_t = at_.b.fp8.weights_t + block.fcproj.weight;
    fcproj_gelu_gradient_fp8(at_.cuda, {.dx = scaler_.output(block.fc, Fp8Role::grad, dpre, pass),
                                        .gelu_t = gelu_t,
                                        .dbias = at_.grad(block.fc.bias),
                                        .dout = scaler_.tensor(block.fcproj, Fp8Role::grad, dout),
                                        .weight_t = scaler_.tensor(block.fcproj, Fp8Role::weight, weight_t),
                                        .gelu = values,
                                        .slope = values + R * block.fc.OC,
                                        .rows = R,
                                        .C = block.fc.C,
                                        .OC = block.fc.OC});
    return;
  }
  input_gradient(dgelu, dout, block.fcproj, R);
  scaler_.produce(block.fc, Fp8Role::grad, dpre, pass, [&](const Fp8Output& output) {
    gelu_backward_fp8(at_.cuda, {.din = output,
                                 .out = scaler_.recomputed_output(block.fcproj, gelu_t, pass),
                                 .dbias = at_.grad(block.fc.bias),
                                 .dout = dgelu,
                                 .in = pre,
                                 .rows = R,
                                 .cols = block.fc.OC});
  });
}

// ---- LM head ----

const SoftmaxPart* LinearsFp8::lm_head(bf16* logits, SoftmaxPart* parts, const uint8_t* in, const LinearLayer& lm_head,
                                       int64_t R) const {
  const Fp8Tensor h = scaler_.tensor(lm_head, Fp8Role::act, in);
  if (!can_fuse_lm_head_fp8(*at_.cuda.device, R, lm_head.C, lm_head.OC) || h.format != Fp8Format::e4m3) {
    forward(logits, in, lm_head, R);
    return nullptr;
  }
  lm_head_fp8(at_.cuda, {.logits = logits,
                         .parts = parts,
                         .in = h,
                         .weight = scaler_.tensor(lm_head, Fp8Role::weight, at_.b.fp8.weights + lm_head.weight),
                         .rows = R,
                         .C = lm_head.C,
                         .vocab = at_.config.vocab,
                         .padded_vocab = lm_head.OC});
  return parts;
}

// ---- LayerNorms ----

void LayerNormsFp8::into(Fp8Output out, const LayerNormLayer& norm, int64_t R) const {
  layernorm_forward_fp8(at_.cuda, layernorm_arguments<LayerNormForwardFp8>(at_, out, norm, R));
}

void LayerNormsFp8::forward(uint8_t* out, const LayerNormLayer& norm, int64_t R, Fp8Pass pass) const {
  scaler_.produce(norm.feeds, Fp8Role::act, {out, nullptr}, pass,
                  [&](const Fp8Output& output) { into(output, norm, R); });
}

void LayerNormsFp8::measure_final(uint8_t* scratch, const LayerNormLayer& norm, int64_t R, Fp8Pass pass) const {
  if (!scaler_.recipe().measures(pass, Fp8Role::act)) return;
  into(scaler_.amax_output(norm.feeds, Fp8Role::act, {scratch, nullptr}), norm, R);
  scaler_.set_current_scale(norm.feeds, Fp8Role::act, pass);
}

// Under --fp8_format e5m2 the transpose is a separate tensor with its own scale. The kernel that writes it overwrites
// out.data, so a second call writes out.data with the forward scale. Both add the same branch to the same stream.
void LayerNormsFp8::final_chunk(Fp8Values out, const LayerNormLayer& chunk, int64_t rows, Fp8Pass pass) const {
  const LinearLayer& lm_head = chunk.feeds;
  const bool copy = out.transposed && scaler_.recipe().activation_copy();
  if (!copy) return into(scaler_.output(lm_head, Fp8Role::act, out, pass), chunk, rows);
  into(scaler_.output(lm_head, Fp8Role::act_t, out, pass), chunk, rows);
  into(scaler_.output(lm_head, Fp8Role::act, {out.data, nullptr}, pass), chunk, rows);
}

// In place in dx: an amax-only call writes nothing, so the second call still reads the old dx.
void LayerNormsFp8::gradient(bf16* dx, Fp8Values dx_fp8, uint8_t* out_t, const bf16* dout, const LayerNormLayer& norm,
                             int64_t R, Fp8Pass pass) const {
  const auto write = [&](const Fp8Output& output) {
    layernorm_backward_fp8(at_.cuda,
                           {.dresidual_out = dx,
                            .dresidual_in = norm.is_final() ? nullptr : dx, // the final LayerNorm starts the gradient
                            .dresidual_fp8 = output,
                            .out = out_t ? scaler_.recomputed_output(norm.feeds, out_t, pass) : Fp8Output{},
                            .dweight = at_.grad(norm.weight),
                            .dbias = at_.grad(norm.bias),
                            .dbranch_bias = norm.adds ? at_.grad(norm.adds->bias) : nullptr,
                            .dout = dout,
                            .x = norm.x,
                            .weight = at_.vector(norm.weight),
                            .bias = at_.vector(norm.bias),
                            .mean = norm.mean,
                            .rstd = norm.rstd,
                            .rows = R,
                            .C = at_.config.channels});
  };
  if (norm.adds && scaler_.quantizes(norm.adds->layer))
    scaler_.produce(*norm.adds, Fp8Role::grad, dx_fp8, pass, write);
  else
    write(Fp8Output{}); // the gradient goes to the embedding, or to a block in BF16
}

// ---- losses ----

void LossesFp8::of_chunk(Fp8Values dlogits, const SoftmaxPart* parts, const LinearLayer& lm_head, int64_t row,
                         int64_t rows) const {
  cross_entropy_fp8(at_.cuda, {.logits = at_.b.logits,
                               .losses = at_.b.losses + row,
                               .dlogits = scaler_.dlogits(lm_head, dlogits),
                               .targets = at_.b.targets + row,
                               .rows = rows,
                               .first_row = row,
                               .first_token = at_.b.first_token,
                               .vocab = at_.config.vocab,
                               .padded_vocab = at_.config.padded_vocab,
                               .parts = parts,
                               .parts_per_row = lm_head_parts_fp8(lm_head.C, lm_head.OC)});
}

} // namespace gpt2
