// Decoding on a GPU: the forward pass of gpt2_cuda.cu with attention over the KV cache. Up to kMaxDecodeRows rows a
// block is six kernels that fuse everything around their GEMM; with more rows it uses cuBLASLt.
#include <cuda_bf16.h>

#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/cuda/gpt2_cuda_model.h"
#include "kernels/decode.h"
#include "kernels/top_k.h"

namespace gpt2 {

// A step always has all rows, so that one captured graph serves every call: rows without a token write token 0 into the
// cache's spare row.
class DecoderCuda final : public Decoder {
 public:
  DecoderCuda(GPT2Cuda& model, int rows, int positions)
      : Decoder(model.config(), rows, positions),
        model_(model),
        cuda_(model.cuda_),
        stream_(cuda_.stream),
        context_(model.context_),
        b_(model.b_),
        cache_(model.config(), rows, positions),
        prompt_slots_(2 * sizeof(int32_t) * static_cast<size_t>(positions)),
        inputs_(3 * sizeof(int32_t) * static_cast<size_t>(rows)),
        staged_(3 * static_cast<size_t>(rows)),
        logits_(static_cast<size_t>(rows) * static_cast<size_t>(model.config().padded_vocab)),
        likely_(sizeof(TokenLogit) * static_cast<size_t>(rows) * kMaxTopK),
        likely_host_(static_cast<size_t>(rows) * kMaxTopK) {
    std::vector<int32_t> all_positions(static_cast<size_t>(positions));
    std::iota(all_positions.begin(), all_positions.end(), 0);
    copy_to_device<int32_t>(stream_, prompt_positions(), all_positions);
  }

 private:
  int32_t* prompt_rows() const { return reinterpret_cast<int32_t*>(prompt_slots_.data()); }
  int32_t* prompt_positions() const { return prompt_rows() + positions(); }
  int32_t* tokens() const { return reinterpret_cast<int32_t*>(inputs_.data()); } // (rows), then their slots
  TokenSlots slots() const { return {tokens() + rows(), tokens() + 2 * rows(), rows()}; }

  void read_prompts(std::span<const RowTokens> prompts, std::span<float> logits) override {
    const auto vocab = static_cast<size_t>(config().vocab);
    struct Reset {
      GPT2Cuda& model;
      ~Reset() { model.prefill_cache_.reset(); }
    } const reset_at_end{model_};
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::vector<int32_t> row(prompts[i].tokens.size(), prompts[i].row);
      copy_to_device<int32_t>(stream_, prompt_rows(), row);
      const TokenSlots slots{prompt_rows(), prompt_positions(), static_cast<int64_t>(row.size())};
      model_.prefill_cache_.emplace(GPT2Cuda::PrefillCache{cache_, slots});
      model_.next_token_logits(prompts[i].tokens, logits.subspan(i * vocab, vocab));
    }
  }

  void read_next(std::span<const RowToken> next, std::span<float> logits) override {
    run_step(next);
    const auto padded = static_cast<size_t>(config().padded_vocab), vocab = static_cast<size_t>(config().vocab);
    copy_to_host(stream_, std::span(logits_.get(), static_cast<size_t>(rows()) * padded), b_.logits);
    for (size_t i = 0; i < next.size(); ++i) {
      const bf16* const values = logits_.get() + static_cast<size_t>(next[i].row) * padded;
      std::transform(values, values + vocab, logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                     [](bf16 value) { return __bfloat162float(value); });
    }
  }

  void read_next(std::span<const RowToken> next, int count, std::span<TokenLogit> likeliest) override {
    run_step(next);
    auto* const likely = reinterpret_cast<TokenLogit*>(likely_.data()); // (rows, count)
    top_k_tokens(cuda_, {.out = likely,
                         .logits = b_.logits,
                         .rows = rows(),
                         .count = count,
                         .vocab = config().vocab,
                         .padded_vocab = config().padded_vocab});
    const auto per_row = static_cast<size_t>(count);
    copy_to_host(stream_, std::span(likely_host_.get(), static_cast<size_t>(rows()) * per_row),
                 static_cast<const TokenLogit*>(likely));
    for (size_t i = 0; i < next.size(); ++i) {
      const TokenLogit* const row = likely_host_.get() + static_cast<size_t>(next[i].row) * per_row;
      std::copy_n(row, per_row, likeliest.begin() + static_cast<std::ptrdiff_t>(i * per_row));
    }
  }

  void stage(std::span<const RowToken> next) {
    int32_t *token = staged_.get(), *row = token + rows(), *position = row + rows();
    for (int i = 0; i < rows(); ++i) {
      token[i] = 0;
      row[i] = rows(); // the spare one
      position[i] = 0;
    }
    for (const RowToken& step : next) {
      token[step.row] = step.token;
      row[step.row] = step.row;
      position[step.row] = length(step.row);
    }
  }

  // The first step runs eagerly: GEMMs choose their plans.
  void run_step(std::span<const RowToken> next) {
    stage(next);
    CUDA_CHECK(cudaMemcpyAsync(tokens(), staged_.get(), 3 * sizeof(int32_t) * static_cast<size_t>(rows()),
                               cudaMemcpyHostToDevice, stream_));
    if (!warm_) {
      decode();
      warm_ = true;
      return;
    }
    if (!graph_) graph_.capture(stream_, [this] { decode(); });
    graph_.launch(stream_);
  }

  void decode();
  void decode_block_fused(int layer);
  void decode_block_gemms(int layer);
  void attend_to_cache(int layer);
  LinearDecode fused_linear(bf16* out, const bf16* in, const LinearLayer& layer) const;

  GPT2Cuda& model_;
  CudaStream& cuda_;
  const cudaStream_t stream_;
  const LayerContext& context_;
  const CudaBuffers& b_;
  const KeyValueCacheCuda cache_;
  const DeviceMemory prompt_slots_;      // (2, positions): the prompt's row, repeated; 0, 1, 2, ...
  const DeviceMemory inputs_;            // (3, rows): tokens, rows, positions of a step
  const Pinned<int32_t> staged_;         // staging memory of inputs_
  const Pinned<bf16> logits_;            // (rows, Vp)
  const DeviceMemory likely_;            // (rows, up to kMaxTopK)
  const Pinned<TokenLogit> likely_host_; // the same
  Graph graph_;
  bool warm_ = false;
};

void DecoderCuda::attend_to_cache(int layer) {
  const BlockActivations& a = b_.blocks[layer];
  model_.append_to_cache(layer, cache_, slots());
  attention_decode(cuda_, {.out = a.o,
                           .qkv = a.qkv,
                           .cache = cache_.block(layer),
                           .slots = slots(),
                           .NH = config().heads,
                           .HS = config().head_dim()});
}

void DecoderCuda::decode() {
  const bool few = rows() <= kMaxDecodeRows;
  embedding_decode(cuda_, {.out = b_.blocks[0].x,
                           .tokens = tokens(),
                           .slots = slots(),
                           .wte = context_.weight(model_.at_.wte),
                           .wpe = context_.weight(model_.at_.wpe),
                           .C = config().channels});
  for (int layer = 0; layer < config().layers; ++layer) {
    if (few)
      decode_block_fused(layer);
    else
      decode_block_gemms(layer);
  }
  if (few) {
    LinearDecode head = fused_linear(b_.logits, b_.blocks[0].x, model_.lm_head_layer());
    head.ln_weight = context_.vector(model_.at_.lnf_weight);
    head.ln_bias = context_.vector(model_.at_.lnf_bias);
    return linear_decode(cuda_, head); // (rows, C) -> (rows, Vp)
  }
  model_.norms_.forward(b_.h_final, model_.final_layernorm_layer(), rows());
  model_.linears_.forward(b_.logits, b_.h_final, model_.lm_head_layer(), rows());
}

LinearDecode DecoderCuda::fused_linear(bf16* out, const bf16* in, const LinearLayer& layer) const {
  return {.out = out,
          .in = in,
          .weight = context_.weight(layer.weight),
          .bias = context_.bias(layer),
          .ln_weight = nullptr,
          .ln_bias = nullptr,
          .residual = nullptr,
          .gelu = false,
          .rows = rows(),
          .C = layer.C,
          .OC = layer.OC};
}

// The residual stream stays in the first block's x; the projections add to it in place.
void DecoderCuda::decode_block_fused(int layer) {
  const BlockLayers block = model_.block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  bf16* const x = b_.blocks[0].x;

  LinearDecode qkv = fused_linear(a.qkv, x, block.qkv);
  qkv.ln_weight = context_.vector(block.ln1.weight);
  qkv.ln_bias = context_.vector(block.ln1.bias);
  linear_decode(cuda_, qkv);
  attend_to_cache(layer);
  LinearDecode proj = fused_linear(x, a.o, block.proj);
  proj.residual = x;
  linear_decode(cuda_, proj);
  LinearDecode fc = fused_linear(a.gelu, x, block.fc);
  fc.ln_weight = context_.vector(block.ln2.weight);
  fc.ln_bias = context_.vector(block.ln2.bias);
  fc.gelu = true;
  linear_decode(cuda_, fc);
  LinearDecode fcproj = fused_linear(x, a.gelu, block.fcproj);
  fcproj.residual = x;
  linear_decode(cuda_, fcproj);
}

void DecoderCuda::decode_block_gemms(int layer) {
  const BlockLayers block = model_.block_layers(layer);
  const BlockActivations& a = b_.blocks[layer];
  const Linears& linears = model_.linears_;
  const LayerNorms& norms = model_.norms_;
  const int64_t R = rows();

  norms.forward(a.h1, block.ln1, R);              // x = x_mid + branch of the block before
  linears.forward(a.qkv, a.h1, block.qkv, R);     // (R, C) -> (R, 3C)
  attend_to_cache(layer);                         // (R, 3C) -> (R, C)
  linears.forward(b_.branch, a.o, block.proj, R); // (R, C) -> (R, C)
  norms.forward(a.h2, block.ln2, R);              // x_mid = x + branch; h2 = LayerNorm(x_mid)
  linears.forward_gelu(a.gelu, a.pre, a.h2, block.fc, R, model_.fuses_gelu()); // (R, C) -> pre (R, 4C), gelu(pre)
  linears.forward(b_.branch, a.gelu, block.fcproj, R);                         // (R, 4C) -> (R, C)
}

// An FP8 model recomputes whole texts: FP8 GEMMs need 16 rows, and the decode kernels read BF16 weights.
std::unique_ptr<Decoder> GPT2Cuda::make_decoder(int rows, int positions) {
  if (fp8_ || !gpu_decode_supports_head_size(config_.head_dim()))
    return make_recomputing_decoder(*this, rows, positions);
  if (rows > b_.logits_rows) {
    throw Error(ExitCode::usage,
                "--batch_size " + std::to_string(rows) + " exceeds this model's " + std::to_string(b_.logits_rows) +
                    " texts at a time",
                "lower --batch_size");
  }
  return std::make_unique<DecoderCuda>(*this, rows, positions);
}

void GPT2Cuda::append_to_cache(int layer, const KeyValueCacheCuda& cache, const TokenSlots& slots) {
  append_kv_cache(cuda_, {.cache = cache.block(layer),
                          .qkv = b_.blocks[layer].qkv,
                          .slots = slots,
                          .NH = config_.heads,
                          .HS = config_.head_dim()});
}

} // namespace gpt2
