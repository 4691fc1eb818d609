// Reading one token more: the passes of gpt2_cpu_passes.cpp with attention over what was kept.
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
  // One after the other: prompts differ in length, and one of some dozens of tokens keeps all threads busy.
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
    const TokenSlots places{rows.data(), positions.data(), static_cast<int64_t>(next.size())};
    model_.decode(cache_, tokens, places, logits);
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
  const std::vector<int32_t> no_targets(tokens.size(), kIgnoredTarget), rows(tokens.size(), row);
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const TokenSlots places{rows.data(), positions.data(), static_cast<int64_t>(tokens.size())};
  const Batch batch = {
      .batch_size = 1, .seq_len = static_cast<int>(tokens.size()), .inputs = tokens, .targets = no_targets};

  check_batch(batch, options_);
  begin_reading();
  embed(batch);
  forward_blocks(batch.tokens(), [&](int layer) {
    append_kv_cache(cpu_, {.cache = cache.block(layer),
                           .qkv = activations_.blocks[layer].qkv,
                           .slots = places,
                           .NH = config_.heads,
                           .HS = config_.head_dim()});
    attend(layer, batch);
  });
  read_logits(batch.tokens() - 1, 1, logits);
}

// Where a tensor's own amax sets its scale, rows must not set each other's: a text is the same alone and in a batch.
void GPT2Cpu::decode(const KeyValueCacheCpu& cache, std::span<const int32_t> tokens, const TokenSlots& places,
                     std::span<float> logits) {
  begin_reading();
  const bool one_by_one = recipe_ && recipe_->measures(Fp8Pass::reading, Fp8Role::act);
  const int64_t room = std::min(int64_t{options_.batch_size} * options_.seq_len, CpuActivations::kHeadChunk);
  const int64_t most = one_by_one ? 1 : room;
  for (int64_t first = 0; first < places.count; first += most) {
    const int64_t count = std::min(most, places.count - first);
    const auto begin = static_cast<size_t>(first), size = static_cast<size_t>(count),
               vocab = static_cast<size_t>(config_.vocab);
    decode_at_once(cache, tokens.subspan(begin, size), {places.rows + first, places.positions + first, count},
                   logits.subspan(begin * vocab, size * vocab));
  }
}

void GPT2Cpu::decode_at_once(const KeyValueCacheCpu& cache, std::span<const int32_t> tokens, const TokenSlots& places,
                             std::span<float> logits) {
  const int NH = config_.heads, HS = config_.head_dim();
  embedding_decode(cpu_, {.out = activations_.blocks[0].x,
                          .tokens = tokens.data(),
                          .slots = places,
                          .wte = params_.data() + at_.wte,
                          .wpe = params_.data() + at_.wpe,
                          .C = config_.channels});
  forward_blocks(places.count, [&](int layer) {
    const CpuBlockActivations& a = activations_.blocks[layer];
    const KvCache<float> kept = cache.block(layer);
    append_kv_cache(cpu_, {.cache = kept, .qkv = a.qkv, .slots = places, .NH = NH, .HS = HS});
    attention_decode(cpu_, {.out = a.attention, .qkv = a.qkv, .cache = kept, .slots = places, .NH = NH, .HS = HS});
  });
  read_logits(0, places.count, logits);
}

void GPT2Cpu::read_logits(int64_t first, int64_t rows, std::span<float> logits) {
  float* const h = activations_.h + first * config_.channels;
  linears_.forward(linear(config_.layers, Fp8Site::lm_head),
                   {.out = activations_.logits, .in = h, .kept = h, .rows = rows});
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(activations_.logits + row * config_.padded_vocab, config_.vocab, logits.begin() + row * config_.vocab);
}

} // namespace gpt2
