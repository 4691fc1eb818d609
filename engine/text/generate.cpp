#include "engine/text/generate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/rng.h"
#include "engine/base/stopwatch.h"
#include "engine/text/tokenizer.h"

namespace gpt2 {
namespace {

class Writer {
 public:
  Writer(Decoder& decoder, std::span<const Prompt> prompts, const GenerationSettings& settings,
         const Listeners& listeners)
      : decoder_(decoder),
        settings_(settings),
        listeners_(listeners),
        vocab_(static_cast<size_t>(decoder.config().vocab)),
        likely_count_(likeliest_needed(settings.sampling, vocab_)) {
    result_.texts.resize(prompts.size());
    logits_.resize(prompts.size() * vocab_);
    if (likely_count_) likely_.resize(prompts.size() * *likely_count_);
    for (size_t text = 0; text < prompts.size(); ++text) {
      rows_.push_back({text, {}, Rng(settings.seed, prompts[text].stream)});
      std::vector<int32_t>& context = rows_.back().context;
      if (settings.bos) context.push_back(Tokenizer::kEndOfText);
      context.insert(context.end(), prompts[text].tokens.begin(), prompts[text].tokens.end());
    }
  }

  Generation write() {
    const auto positions = static_cast<size_t>(decoder_.positions());
    Stopwatch prefill;
    std::vector<RowTokens> prompts;
    for (const Row& row : rows_) {
      prompts.push_back({row.number(), std::span(row.context).last(std::min(positions, row.context.size()))});
      result_.prompt_tokens += static_cast<int64_t>(prompts.back().tokens.size());
    }
    prefill_rows(prompts);
    result_.prefill_seconds = prefill.seconds();
    Stopwatch decode;
    while (!rows_.empty() && !listeners_.interrupted()) {
      draw_tokens();
      std::vector<Row> unfinished;
      for (Row& row : rows_) {
        if (extend(row)) unfinished.push_back(std::move(row));
      }
      rows_ = std::move(unfinished);
      read_new_tokens();
    }
    result_.decode_seconds = decode.seconds();
    return std::move(result_);
  }

 private:
  struct Row {
    size_t text;                  // index of the text and of the decoder's row
    std::vector<int32_t> context; // end-of-text, prompt, generated tokens
    Rng rng;
    // Of the next token: all logits after a prefill; after a decode step, only the likeliest tokens where they suffice.
    std::span<float> logits = {};
    std::span<TokenLogit> likeliest = {};
    std::optional<int32_t> drawn = {}; // nullopt: NaN logits
    int number() const { return static_cast<int>(text); }
  };

  // Appends the drawn token; false: the text has ended.
  bool extend(Row& row) {
    WrittenText& text = result_.texts[row.text];
    const auto end = [&](Ending ending) { return text.ending = ending, false; };
    if (settings_.tokens <= 0) return end(Ending::length);
    if (!row.drawn) return end(Ending::not_finite);
    const int32_t token = *row.drawn;
    if (token == Tokenizer::kEndOfText) return end(Ending::end_of_text);
    row.context.push_back(token);
    text.tokens.push_back(static_cast<uint16_t>(token));
    if (!listeners_.token(row.text, text.tokens.back())) return end(Ending::stopped);
    if (text.tokens.size() == static_cast<size_t>(settings_.tokens)) return end(Ending::length);
    if (is_full(row) && !settings_.slide) return end(Ending::no_positions);
    return true;
  }

  // In parallel: 64 rows one after another would cost a third of the GPU's time per step.
  void draw_tokens() {
    const auto count = static_cast<std::ptrdiff_t>(rows_.size());
#pragma omp parallel for schedule(static) if (count > 8)
    for (std::ptrdiff_t i = 0; i < count; ++i)
      rows_[static_cast<size_t>(i)].drawn = drawn(rows_[static_cast<size_t>(i)]);
  }

  std::optional<int32_t> drawn(const Row& row) const {
    const double uniform = row.rng.uniform(result_.texts[row.text].tokens.size());
    const SamplingSettings& sampling = settings_.sampling;
    if (!row.likeliest.empty()) {
      if (std::ranges::any_of(row.likeliest, [](const TokenLogit& t) { return std::isnan(t.logit); })) return {};
      std::ranges::sort(row.likeliest, likelier);
      return draw(candidates(row.likeliest, sampling), uniform);
    }
    if (std::ranges::any_of(row.logits, [](float logit) { return std::isnan(logit); })) return {};
    penalize_repetition(row.logits, row.context, sampling.repetition_penalty);
    return draw(candidates(row.logits, sampling), uniform);
  }

  bool is_full(const Row& row) const { return decoder_.length(row.number()) == decoder_.positions(); }

  void read_new_tokens() {
    // Full rows first: the order in which prefill_rows() and the decoder lay out logits.
    std::stable_partition(rows_.begin(), rows_.end(), [this](const Row& row) { return is_full(row); });
    std::vector<RowTokens> full;
    std::vector<RowToken> next;
    for (const Row& row : rows_) {
      if (!is_full(row)) {
        next.push_back({row.number(), row.context.back()});
        continue;
      }
      const size_t half = static_cast<size_t>(std::max(1, decoder_.positions() / 2));
      full.push_back({row.number(), std::span(row.context).last(half)});
      result_.texts[row.text].slides += 1;
    }
    if (!full.empty()) prefill_rows(full);
    if (!next.empty()) decode_rows(next, full.size());
    result_.decoded_tokens += static_cast<int64_t>(rows_.size());
  }

  void prefill_rows(std::span<const RowTokens> prompts) {
    decoder_.prefill(prompts, std::span(logits_).first(prompts.size() * vocab_));
    for (size_t i = 0; i < prompts.size(); ++i) {
      rows_[i].logits = std::span(logits_).subspan(i * vocab_, vocab_);
      rows_[i].likeliest = {};
    }
  }

  // For rows_[first] and up.
  void decode_rows(std::span<const RowToken> next, size_t first) {
    if (likely_count_) {
      const auto likeliest = std::span(likely_).first(next.size() * *likely_count_);
      decoder_.decode(next, static_cast<int>(*likely_count_), likeliest);
      for (size_t i = 0; i < next.size(); ++i)
        rows_[first + i].likeliest = likeliest.subspan(i * *likely_count_, *likely_count_);
      return;
    }
    decoder_.decode(next, std::span(logits_).subspan(first * vocab_, next.size() * vocab_));
    for (size_t i = 0; i < next.size(); ++i)
      rows_[first + i].logits = std::span(logits_).subspan((first + i) * vocab_, vocab_);
  }

  Decoder& decoder_;
  const GenerationSettings& settings_;
  const Listeners& listeners_;
  const size_t vocab_;
  const std::optional<size_t> likely_count_;
  std::vector<Row> rows_;          // unfinished texts
  std::vector<float> logits_;      // (texts, vocab), those of rows_ first
  std::vector<TokenLogit> likely_; // (texts, likely_count_)
  Generation result_;
};

} // namespace

Generation generate(Decoder& decoder, std::span<const Prompt> prompts, const GenerationSettings& settings,
                    const Listeners& listeners) {
  return Writer(decoder, prompts, settings, listeners).write();
}

std::vector<uint16_t> write_sample(EvaluableModel& model, const Prompt& prompt, const GenerationSettings& settings,
                                   const std::function<bool()>& interrupted) {
  const int64_t longest = 1 + static_cast<int64_t>(prompt.tokens.size()) + settings.tokens;
  const auto decoder = model.make_decoder(1, static_cast<int>(std::min<int64_t>(longest, model.config().seq_len)));
  const Generation generation = generate(*decoder, {&prompt, 1}, settings, {.interrupted = interrupted});
  std::vector<uint16_t> tokens = prompt.tokens;
  tokens.insert(tokens.end(), generation.texts[0].tokens.begin(), generation.texts[0].tokens.end());
  return tokens;
}

} // namespace gpt2
