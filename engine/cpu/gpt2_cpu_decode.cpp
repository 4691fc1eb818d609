// Decoding: the forward pass of gpt2_cpu_passes.cpp with attention over the KV cache.
#include <algorithm>
#include <numeric>

#include "engine/cpu/gpt2_cpu.h"
#include "kernels/decode.h"

namespace gpt2 {
namespace {

class DecoderCpu final : public Decoder {
 public:
  DecoderCpu(GPT2Cpu& model, int rows, int positions)
      : Decoder(model.config(), rows, positions), model_(model), cache_(model.config(), rows, positions) {}

 private:
  // Sequentially: prompts differ in length, and one of a few dozen tokens keeps all threads busy.
  void read_prompts(std::span<const RowTokens> prompts, std::span<float> logits) override {
    const auto vocab = static_cast<size_t>(config().vocab);
    for (size_t i = 0; i < prompts.size(); ++i)
      model_.prefill(cache_, prompts[i].row, prompts[i].tokens, logits.subspan(i * vocab, vocab));
  }

  void read_next(std::span<const RowToken> next, std::span<float> logits) override {
    std::vector<int32_t> tokens, rows, positions;
    for (const auto& [row, token] : next) {
      tokens.push_back(token);
      rows.push_back(row);
      positions.push_back(length(row));
    }
    const TokenSlots slots{rows.data(), positions.data(), static_cast<int64_t>(next.size())};
    model_.decode(cache_, tokens, slots, logits);
  }

  GPT2Cpu& model_;
  KeyValueCacheCpu cache_;
};

} // namespace

std::unique_ptr<Decoder> GPT2Cpu::make_decoder(int rows, int positions) {
  return std::make_unique<DecoderCpu>(*this, rows, positions);
}

void GPT2Cpu::prefill(const KeyValueCacheCpu& cache, int row, std::span<const int32_t> tokens,
                      std::span<float> logits) {
  const std::vector<int32_t> rows(tokens.size(), row);
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const TokenSlots slots{rows.data(), positions.data(), static_cast<int64_t>(tokens.size())};
  read_text(tokens, logits, [&](int layer) {
    append_kv_cache(cpu_, {.cache = cache.block(layer),
                           .qkv = activations_.blocks[layer].qkv,
                           .slots = slots,
                           .NH = config_.heads,
                           .HS = config_.head_dim()});
  });
}

void GPT2Cpu::read_text(std::span<const int32_t> tokens, std::span<float> logits,
                        const std::function<void(int layer)>& keep) {
  const std::vector<int32_t> no_targets(tokens.size(), kIgnoredTarget);
  const Batch batch = {
      .batch_size = 1, .seq_len = static_cast<int>(tokens.size()), .inputs = tokens, .targets = no_targets};
  check_batch(batch, options_);
  begin_inference();
  documents_ = {};
  embed(batch);
  forward_blocks(batch.tokens(), [&](int layer) {
    keep(layer);
    attend(layer, batch);
  });
  read_logits(batch.tokens() - 1, 1, logits);
}

// Under current scaling, row by row: a text must not depend on the other texts of its batch.
void GPT2Cpu::decode(const KeyValueCacheCpu& cache, std::span<const int32_t> tokens, const TokenSlots& slots,
                     std::span<float> logits) {
  begin_inference();
  const bool one_by_one = recipe_ && recipe_->measures(Fp8Pass::inference, Fp8Role::act);
  const int64_t max_rows = std::min(int64_t{options_.batch_size} * options_.seq_len, CpuActivations::kHeadChunk);
  const int64_t chunk = one_by_one ? 1 : max_rows;
  for (int64_t first = 0; first < slots.count; first += chunk) {
    const int64_t count = std::min(chunk, slots.count - first);
    const auto begin = static_cast<size_t>(first), size = static_cast<size_t>(count),
               vocab = static_cast<size_t>(config_.vocab);
    decode_chunk(cache, tokens.subspan(begin, size), {slots.rows + first, slots.positions + first, count},
                 logits.subspan(begin * vocab, size * vocab));
  }
}

void GPT2Cpu::decode_chunk(const KeyValueCacheCpu& cache, std::span<const int32_t> tokens, const TokenSlots& slots,
                           std::span<float> logits) {
  const int NH = config_.heads, HS = config_.head_dim();
  embedding_decode(cpu_, {.out = activations_.blocks[0].x,
                          .tokens = tokens.data(),
                          .slots = slots,
                          .wte = params_.data() + at_.wte,
                          .wpe = params_.data() + at_.wpe,
                          .C = config_.channels});
  forward_blocks(slots.count, [&](int layer) {
    const CpuBlockActivations& a = activations_.blocks[layer];
    const KvCache<float> kept = cache.block(layer);
    append_kv_cache(cpu_, {.cache = kept, .qkv = a.qkv, .slots = slots, .NH = NH, .HS = HS});
    attention_decode(cpu_, {.out = a.attention, .qkv = a.qkv, .cache = kept, .slots = slots, .NH = NH, .HS = HS});
  });
  read_logits(0, slots.count, logits);
}

void GPT2Cpu::read_logits(int64_t first, int64_t rows, std::span<float> logits) {
  float* const h = activations_.h + first * config_.channels;
  linears_.forward(linear(config_.layers, Fp8Site::lm_head),
                   {.out = activations_.logits, .in = h, .kept = h, .rows = rows});
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(activations_.logits + row * config_.padded_vocab, config_.vocab, logits.begin() + row * config_.vocab);
}

} // namespace gpt2
