// The layers of GPT-2 on a GPU with FP8 GEMMs. A `layer` argument is the GEMM that reads the FP8 values or, for a
// gradient, the GEMM whose output it is of. The caller chooses the buffers.
#pragma once

#include "engine/cuda/fp8_scaler.h"
#include "engine/cuda/layers_cuda.h"

namespace gpt2 {

class LinearsFp8 {
 public:
  LinearsFp8(const LayerContext& at, const Fp8Scaler& scaler) : at_(at), scaler_(scaler) {}

  // out = layer(in) (+ residual).
  void forward(bf16* out, const uint8_t* in, const LinearLayer& layer, int64_t R, const bf16* residual = nullptr) const;
  void input_gradient(bf16* din, const uint8_t* dout, const LinearLayer& layer, int64_t R) const;
  void weight_gradient(const uint8_t* dout_t, const uint8_t* in_t, const LinearLayer& layer, int64_t R) const;

  // Quantization as a separate pass. quantize_transposed: for backward, with forward's scale.
  void quantize(uint8_t* out, const bf16* in, const LinearLayer& layer, int64_t R, Fp8Pass pass) const;
  void quantize_transposed(uint8_t* out_t, const bf16* in, const LinearLayer& layer, int64_t R, Fp8Pass pass) const;
  void quantize_gradient(Fp8Values out, float* dbias, const bf16* dout, const LinearLayer& layer, int64_t R,
                         Fp8Pass pass) const;
  // From the BF16 weight, not the master: ranks may gather either BF16 or FP8 weights and get the same values.
  void quantize_weight(const LinearLayer& layer, Fp8Pass pass) const;
  // A rank's part of a weight: `count` elements from `offset` of the flat buffer, row-major, with the recipe's scale.
  void quantize_weight_part(const LinearLayer& layer, int64_t offset, int64_t count) const;

  // fc and GELU. Returns GELU's FP8 values: in `gelu`, or, from the fused kernel, in the memory of `pre` together with
  // the slopes that backward needs.
  const uint8_t* fc_gelu(bf16* pre, uint8_t* gelu, const uint8_t* in, const BlockLayers& block, int64_t R,
                         Fp8Pass pass) const;
  // The gradient from fcproj's output to fc's output, fc's bias gradient, and GELU's FP8 values transposed in gelu_t.
  // The fused kernel does not use `dgelu`.
  void fcproj_gelu_gradient(Fp8Values dpre, uint8_t* gelu_t, bf16* dgelu, const uint8_t* dout, const bf16* pre,
                            const BlockLayers& block, int64_t R, Fp8Pass pass) const;

  // The LM head in training. Returns `parts`, filled with the logits' softmax statistics by the fused kernel, or null
  // without it.
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

  // The final LayerNorm runs in chunks of rows with the LM head. Its scale is that of the whole tensor, so under
  // current scaling measure_final() runs before the first chunk.
  void measure_final(uint8_t* scratch, const LayerNormLayer& norm, int64_t R, Fp8Pass pass) const;
  void final_chunk(Fp8Values out, const LayerNormLayer& chunk, int64_t rows, Fp8Pass pass) const;

  // dx += gradient through the LayerNorm (the final one writes dx); dx in FP8 if the projection norm.adds is in FP8;
  // the recomputed output of the LayerNorm in out_t, unless null.
  void gradient(bf16* dx, Fp8Values dx_fp8, uint8_t* out_t, const bf16* dout, const LayerNormLayer& norm, int64_t R,
                Fp8Pass pass) const;

 private:
  void into(Fp8Output out, const LayerNormLayer& norm, int64_t R) const;

  LayerContext at_;
  const Fp8Scaler& scaler_;
};

class LossesFp8 {
 public:
  LossesFp8(const LayerContext& at, const Fp8Scaler& scaler) : at_(at), scaler_(scaler) {}

  // As in Losses. parts: the result of LinearsFp8::lm_head().
  void of_chunk(Fp8Values dlogits, const SoftmaxPart* parts, const LinearLayer& lm_head, int64_t row,
                int64_t rows) const;

 private:
  LayerContext at_;
  const Fp8Scaler& scaler_;
};

} // namespace gpt2
