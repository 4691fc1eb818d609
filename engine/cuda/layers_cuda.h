// The layers of GPT-2 on a GPU in BF16: linear layers, LayerNorms, attention, GELU, losses. One call per operation of
// gpt2_cuda.cu fills a kernel's arguments: output, inputs, layer, rows. Parameter gradients accumulate. Bias gradients
// are column sums, fused into the kernel that writes the gradient.
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
  const bf16* branch;              // (R, C); null in the first block, whose x is the embedding
  float *mean, *rstd;              // (R), kept for backward
  std::optional<LinearLayer> adds; // the projection whose output is the branch; none if branch is null
  LinearLayer feeds;               // reads the output

  bool is_final() const { return feeds.site == Fp8Site::lm_head; }
  LayerNormLayer without_add() const; // reads x, already summed, and writes no x
};

inline LayerNormLayer LayerNormLayer::without_add() const {
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

// Shared by all layers of a model: stream, shape, memory.
struct LayerContext {
  CudaStream& cuda;
  const GPT2Config& config;
  const CudaBuffers& b;

  bf16* weight(int64_t offset) const { return b.weights + offset; }      // read by GEMMs
  const float* vector(int64_t offset) const { return b.vector(offset); } // LayerNorm's, in FP32
  float* grad(int64_t offset) const { return b.grad + offset; }
  const bf16* bias(const LinearLayer& layer) const { // null: no bias
    return layer.bias == LinearLayer::kNoBias ? nullptr : weight(layer.bias);
  }
};

class Linears {
 public:
  explicit Linears(const LayerContext& at) : at_(at) {}

  void forward(bf16* out, const bf16* in, const LinearLayer& layer, int64_t R) const;
  // fused: GELU in cuBLASLt's epilogue instead of a separate kernel; the bits differ.
  void forward_gelu(bf16* out, bf16* pre, const bf16* in, const LinearLayer& layer, int64_t R, bool fused) const;
  void input_gradient(bf16* din, const bf16* dout, const LinearLayer& layer, int64_t R) const;
  void weight_gradient(const bf16* dout, const bf16* in, const LinearLayer& layer, int64_t R) const;

  void gelu(bf16* out, const bf16* pre, int64_t R) const;
  // In place; also fc's bias gradient.
  void gelu_gradient(bf16* gradient, const bf16* pre, const LinearLayer& fc, int64_t R) const;

 private:
  LayerContext at_;
};

// Forward: LayerNormForward<bf16> or LayerNormForwardFp8, equal but for the type of `out`.
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
  // dx += gradient through the LayerNorm (the final LayerNorm writes dx), and the bias gradient of norm.adds.
  void gradient(bf16* dx, const bf16* dout, const LayerNormLayer& norm, int64_t R) const;

 private:
  LayerContext at_;
};

class Attention {
 public:
  explicit Attention(const LayerContext& at) : at_(at) {}

  void forward(const BlockActivations& a, int B, int T) const; // a.o from a.qkv
  // dbias: qkv's bias gradient, or null.
  void gradient(bf16* dqkv, float* dbias, const bf16* dout, const BlockActivations& a, int B, int T) const;

 private:
  bool uses_sm90_kernels(int B, int T) const;

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

  // Losses of b.logits, which hold `rows` rows from `row`. write_gradient: the logits become softmax - onehot.
  void of_chunk(int64_t row, int64_t rows, bool write_gradient) const;
  void accumulate(StepSums* sums, int64_t R) const;

 private:
  LayerContext at_;
};

} // namespace gpt2
