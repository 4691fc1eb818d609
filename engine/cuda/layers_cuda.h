// The layers of GPT-2 on a GPU, in BF16: linear layers, LayerNorms, attention, GELU, losses. gpt2_cuda.cu says an
// operation in one line, output first, then its inputs, the layer and the rows; here that line becomes a kernel's
// arguments. Gradients of parameters are added to; those of biases are column sums that a kernel takes of what it
// writes anyway.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "engine/cuda/cuda_buffers.h"
#include "engine/model/linear_layer.h"
#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

// x = x_before + branch;  out = LayerNorm(x)
struct LayerNormLayer {
  int64_t weight, bias;            // offsets of (C)
  bf16* x;                         // (R, C) residual stream after the add, kept for backward
  const bf16* x_before;            // (R, C) before the add
  const bf16* branch;              // (R, C), or null: the first block's x is the embedding, with nothing to add
  float *mean, *rstd;              // (R), kept for backward
  std::optional<LinearLayer> adds; // the projection that made the branch; none where branch is null
  LinearLayer feeds;               // the product that reads the output

  bool is_final() const { return feeds.site == Fp8Site::lm_head; }
  LayerNormLayer again() const; // the stream is there: nothing to add, nothing to write
};

inline LayerNormLayer LayerNormLayer::again() const {
  LayerNormLayer norm = *this;
  norm.x_before = std::exchange(norm.x, nullptr);
  norm.branch = nullptr;
  return norm;
}

struct BlockLayers { // in forward order
  LayerNormLayer ln1;
  LinearLayer qkv;  // C -> 3C
  LinearLayer proj; // C -> C
  LayerNormLayer ln2;
  LinearLayer fc;     // C -> 4C
  LinearLayer fcproj; // 4C -> C
};

// What all layers of a model share: where they run, their shape, their memory.
struct LayerContext {
  CudaStream& cuda;
  const GPT2Config& config;
  const CudaBuffers& b;

  bf16* weight(int64_t offset) const { return b.weights + offset; }      // as products read it
  const float* vector(int64_t offset) const { return b.vector(offset); } // LayerNorm's, which are read in FP32
  float* grad(int64_t offset) const { return b.grad + offset; }
  const bf16* bias(const LinearLayer& layer) const { // null where there is none
    return layer.bias == LinearLayer::kNoBias ? nullptr : weight(layer.bias);
  }
};

class Linears {
 public:
  explicit Linears(const LayerContext& at) : at_(at) {}

  void forward(bf16* out, const bf16* in, const LinearLayer& layer, int64_t R) const;
  // fused: GELU in the product's epilogue (cuBLASLt) instead of a kernel of its own, whose bits are others.
  void forward_gelu(bf16* out, bf16* pre, const bf16* in, const LinearLayer& layer, int64_t R, bool fused) const;
  void input_gradient(bf16* din, const bf16* dout, const LinearLayer& layer, int64_t R) const;
  void weight_gradient(const bf16* dout, const bf16* in, const LinearLayer& layer, int64_t R) const;

  void gelu(bf16* out, const bf16* pre, int64_t R) const;
  void gelu_gradient(bf16* gradient, const bf16* pre, const LinearLayer& fc,
                     int64_t R) const; // in place; fc's bias too

 private:
  LayerContext at_;
};

// Forward is LayerNormForward<bf16> or LayerNormForwardFp8: the same fields but for the output.
template <class Forward, class Out>
Forward layernorm_arguments(const LayerContext& at, Out out, const LayerNormLayer& norm, int64_t R) {
  return {.out = out,
          .residual_out = norm.x,
          .mean = norm.mean,
          .rstd = norm.rstd,
          .residual_in = norm.x_before,
          .branch = norm.branch,
          .weight = at.vector(norm.weight),
          .bias = at.vector(norm.bias),
          .rows = R,
          .C = at.config.channels};
}

class LayerNorms {
 public:
  explicit LayerNorms(const LayerContext& at) : at_(at) {}

  void forward(bf16* out, const LayerNormLayer& norm, int64_t R) const;
  // dx += gradient through the LayerNorm; the final one, where backward begins, writes dx. And the bias of norm.adds.
  void gradient(bf16* dx, const bf16* dout, const LayerNormLayer& norm, int64_t R) const;

 private:
  LayerContext at_;
};

class Attention {
 public:
  explicit Attention(const LayerContext& at) : at_(at) {}

  void forward(const BlockActivations& a, int B, int T) const; // a.o from a.qkv
  void gradient(bf16* dqkv, float* dbias, const bf16* dout, const BlockActivations& a, int B,
                int T) const; // and qkv's bias, unless null

 private:
  bool for_hopper(int B, int T) const;

  LayerContext at_;
};

class Embedding {
 public:
  Embedding(const LayerContext& at, const GPT2Offsets& offsets) : at_(at), wte_(offsets.wte), wpe_(offsets.wpe) {}

  void forward(bf16* x, int B, int T) const; // of the tokens in b.inputs
  void gradient(const bf16* dx, int B, int T) const;

 private:
  LayerContext at_;
  int64_t wte_, wpe_;
};

class Losses {
 public:
  explicit Losses(const LayerContext& at) : at_(at) {}

  // Of b.logits, which hold the rows from `row` on; they become their gradient, softmax - onehot, if that is asked for.
  void of_chunk(int64_t row, int64_t rows, bool write_gradient) const;
  void add_up(StepSums* sums, int64_t R) const;

 private:
  LayerContext at_;
};

} // namespace gpt2
