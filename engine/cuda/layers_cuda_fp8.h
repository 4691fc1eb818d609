// The layers of GPT-2 on a GPU whose products are in FP8, as gpt2_cuda_fp8.cu says them. The layer named is the product
// that reads the codes, or, for a gradient, the one whose output it belongs to; which buffer holds the codes is the
// caller's choice, and the pass says what may happen to the recipe.
#pragma once

#include "engine/cuda/fp8_scaler.h"
#include "engine/cuda/layers_cuda.h"

namespace gpt2 {

class LinearsFp8 {
 public:
  LinearsFp8(const LayerContext& at, const Fp8Scaler& scaler) : at_(at), scaler_(scaler) {}

  // out = layer(in), + residual unless that is null.
  void forward(bf16* out, const uint8_t* in, const LinearLayer& layer, int64_t R, const bf16* residual = nullptr) const;
  void input_gradient(bf16* din, const uint8_t* dout, const LinearLayer& layer, int64_t R) const;
  void weight_gradient(const uint8_t* dout_t, const uint8_t* in_t, const LinearLayer& layer, int64_t R) const;

  // Quantization as a pass of its own. `again`: transposed, with forward's scale.
  void quantize(uint8_t* out, const bf16* in, const LinearLayer& layer, int64_t R, Fp8Pass pass) const;
  void quantize_again(uint8_t* out_t, const bf16* in, const LinearLayer& layer, int64_t R, Fp8Pass pass) const;
  void quantize_gradient(Fp8Codes out, float* dbias, const bf16* dout, const LinearLayer& layer, int64_t R,
                         Fp8Pass pass) const;
  // The BF16 weight, which the owner rounded from the master: ranks may exchange that or the codes.
  void quantize_weight(const LinearLayer& layer, Fp8Pass pass) const;
  // A rank's part of it, `count` elements from `offset` of the flat buffer on, one way round and with the scale in
  // force.
  void quantize_weight_part(const LinearLayer& layer, int64_t offset, int64_t count) const;

  // fc and GELU, whose codes it returns: they stand in `gelu`, or, where the GPU has a kernel for both, in the room of
  // `pre` together with what backward needs. And the gradient from fcproj's output back to fc's, with fc's bias
  // gradient, and GELU's codes transposed in gelu_t; that one kernel does not use `dgelu`.
  const uint8_t* fc_gelu(bf16* pre, uint8_t* gelu, const uint8_t* in, const BlockLayers& block, int64_t R,
                         Fp8Pass pass) const;
  void fcproj_gelu_gradient(Fp8Codes dpre, uint8_t* gelu_t, bf16* dgelu, const uint8_t* dout, const bf16* pre,
                            const BlockLayers& block, int64_t R, Fp8Pass pass) const;

  // The LM head in training. Returns `parts`, filled with what softmax needs of the logits, where the GPU has a kernel
  // that takes it beside the product, or null.
  const SoftmaxPart* lm_head(bf16* logits, SoftmaxPart* parts, const uint8_t* in, const LinearLayer& lm_head,
                             int64_t R) const;

 private:
  bool fused(const BlockLayers& block, int64_t R) const;

  LayerContext at_;
  const Fp8Scaler& scaler_;
};

class LayerNormsFp8 {
 public:
  LayerNormsFp8(const LayerContext& at, const Fp8Scaler& scaler) : at_(at), scaler_(scaler) {}

  void forward(uint8_t* out, const LayerNormLayer& norm, int64_t R, Fp8Pass pass) const;

  // The final LayerNorm goes with the LM head, a chunk of rows at a time, and its output transposed with it; its scale
  // is that of the whole tensor, so what is measured is measured before the first chunk.
  void measure_final(uint8_t* room, const LayerNormLayer& norm, int64_t R, Fp8Pass pass) const;
  void final_chunk(Fp8Codes out, const LayerNormLayer& chunk, int64_t rows, Fp8Pass pass) const;

  // dx += gradient through the LayerNorm (the final one writes dx), and its codes where the projection that it goes to
  // is in FP8; the LayerNorm's output again in out_t, unless that is null.
  void gradient(bf16* dx, Fp8Codes codes, uint8_t* out_t, const bf16* dout, const LayerNormLayer& norm, int64_t R,
                Fp8Pass pass) const;

 private:
  void into(Fp8Output out, const LayerNormLayer& norm, int64_t R) const;

  LayerContext at_;
  const Fp8Scaler& scaler_;
};

class LossesFp8 {
 public:
  LossesFp8(const LayerContext& at, const Fp8Scaler& scaler) : at_(at), scaler_(scaler) {}

  // As in Losses. parts: of the logits, as LinearsFp8::lm_head() returns them.
  void of_chunk(Fp8Codes dlogits, const SoftmaxPart* parts, const LinearLayer& lm_head, int64_t row,
                int64_t rows) const;

 private:
  LayerContext at_;
  const Fp8Scaler& scaler_;
};

} // namespace gpt2
