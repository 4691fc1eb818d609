#include "engine/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "engine/model/model.h"

namespace gpt2 {

Decoder::Decoder(const GPT2Config& config, int rows, int positions)
    : config_(config), positions_(positions), lengths_(static_cast<size_t>(rows)) {
  if (rows < 1 || positions < 1 || positions > config.seq_len)
    throw std::invalid_argument("a decoder needs at least one row and 1 to seq_len positions");
}

void Decoder::check_call(std::span<const RowTokens> texts, size_t values, size_t per_text) const {
  if (values != texts.size() * per_text) throw std::invalid_argument("wrong size of the logits buffer");
  std::vector<bool> named(lengths_.size());
  for (const auto& [row, tokens] : texts) {
    if (row < 0 || row >= rows() || named[static_cast<size_t>(row)])
      throw std::invalid_argument("row out of range or repeated");
    named[static_cast<size_t>(row)] = true;
    for (const int32_t token : tokens) {
      if (token < 0 || token >= config_.vocab) throw std::invalid_argument("token outside the vocabulary");
    }
  }
}

void Decoder::prefill(std::span<const RowTokens> prompts, std::span<float> logits) {
  check_call(prompts, logits.size(), static_cast<size_t>(config_.vocab));
  for (const auto& [row, tokens] : prompts) {
    if (tokens.empty() || tokens.size() > static_cast<size_t>(positions_))
      throw std::invalid_argument("empty prompt, or longer than the decoder's positions");
  }
  read_prompts(prompts, logits);
  for (const auto& [row, tokens] : prompts) lengths_[static_cast<size_t>(row)] = static_cast<int>(tokens.size());
}

template <class Read>
void Decoder::read_one_more(std::span<const RowToken> next, size_t values, size_t per_text, const Read& read) {
  std::vector<RowTokens> texts;
  for (const RowToken& step : next) texts.push_back({step.row, {&step.token, 1}});
  check_call(texts, values, per_text);
  for (const auto& [row, token] : next) {
    if (length(row) == 0 || length(row) == positions_) throw std::invalid_argument("row without a prompt, or full");
  }
  read();
  for (const auto& [row, token] : next) lengths_[static_cast<size_t>(row)] += 1;
}

void Decoder::decode(std::span<const RowToken> next, std::span<float> logits) {
  read_one_more(next, logits.size(), static_cast<size_t>(config_.vocab), [&] { read_next(next, logits); });
}

void Decoder::decode(std::span<const RowToken> next, int count, std::span<TokenLogit> likeliest) {
  if (count < 1 || count > std::min(config_.vocab, kMaxTopK)) throw std::invalid_argument("top-k count out of range");
  read_one_more(next, likeliest.size(), static_cast<size_t>(count), [&] { read_next(next, count, likeliest); });
}

void Decoder::read_next(std::span<const RowToken> next, int count, std::span<TokenLogit> likeliest) {
  const auto vocab = static_cast<size_t>(config_.vocab);
  std::vector<float> logits(next.size() * vocab);
  read_next(next, logits);
  for (size_t i = 0; i < next.size(); ++i) {
    const auto row = std::span(logits).subspan(i * vocab, vocab);
    const auto best = likeliest.subspan(i * static_cast<size_t>(count), static_cast<size_t>(count));
    std::ranges::copy(top_k_tokens(row, best.size()), best.begin());
    if (std::ranges::any_of(row, [](float logit) { return std::isnan(logit); })) best[0].logit = NAN;
  }
}

namespace {

class RecomputingDecoder final : public Decoder {
 public:
  RecomputingDecoder(EvaluableModel& model, int rows, int positions)
      : Decoder(model.config(), rows, positions), model_(model), texts_(static_cast<size_t>(rows)) {}

 private:
  void read_prompts(std::span<const RowTokens> prompts, std::span<float> logits) override {
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t>& text = texts_[static_cast<size_t>(prompts[i].row)];
      text.assign(prompts[i].tokens.begin(), prompts[i].tokens.end());
      read(text, logits, i);
    }
  }

  void read_next(std::span<const RowToken> next, std::span<float> logits) override {
    for (size_t i = 0; i < next.size(); ++i) {
      std::vector<int32_t>& text = texts_[static_cast<size_t>(next[i].row)];
      text.push_back(next[i].token);
      read(text, logits, i);
    }
  }

  void read(const std::vector<int32_t>& text, std::span<float> logits, size_t index) {
    const auto vocab = static_cast<size_t>(config().vocab);
    model_.next_token_logits(text, logits.subspan(index * vocab, vocab));
  }

  EvaluableModel& model_;
  std::vector<std::vector<int32_t>> texts_; // by row
};

} // namespace

std::unique_ptr<Decoder> make_recomputing_decoder(EvaluableModel& model, int rows, int positions) {
  return std::make_unique<RecomputingDecoder>(model, rows, positions);
}

} // namespace gpt2
