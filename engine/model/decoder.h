// Text, one token at a time: what a row has read is kept (each block's keys and values), so that a further token costs
// one token's work and not the whole text's again. Rows are texts of their own, each as long as it has become.
//
//   auto decoder = model.make_decoder(rows, positions);
//   decoder->prefill({{row, prompt}, ...}, logits)        reads prompts, all rows or some
//   decoder->decode({{row, token}, ...}, logits)          reads one token more of each
//   decoder->decode({{row, token}, ...}, 50, likeliest)   and says only what is likeliest to follow
//
// It reads its model's weights as they are, so a text must end before the model trains on; the model must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/config.h"
#include "kernels/top_k.h"

namespace gpt2 {

class EvaluableModel;

struct RowTokens {
  int row;
  std::span<const int32_t> tokens;
};

struct RowToken {
  int row;
  int32_t token;
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  const GPT2Config& config() const { return config_; }
  int rows() const { return static_cast<int>(lengths_.size()); }
  int positions() const { return positions_; } // the longest text of a row
  int length(int row) const { return lengths_[static_cast<size_t>(row)]; }

  // Each row forgets what it held and reads its tokens, at least one and at most positions(). A row stands in a call
  // once at most. logits: (prompts, vocab), those that follow each row's last token; padding is not among them.
  void prefill(std::span<const RowTokens> prompts, std::span<float> logits);

  // One token more, for rows that have been prefilled and are not full. logits: (next, vocab).
  void decode(std::span<const RowToken> next, std::span<float> logits);

  // The same, of the logits the `count` highest alone, 1 to kMaxTopK: (next, count), each row in any order.
  // Where a row has a NaN, one is among them.
  void decode(std::span<const RowToken> next, int count, std::span<TokenLogit> likeliest);

 protected:
  Decoder(const GPT2Config& config, int rows, int positions); // positions: at most the model's

 private:
  virtual void read_prompts(std::span<const RowTokens> prompts, std::span<float> logits) = 0;
  // The token's position is length(row), which still counts those before it.
  virtual void read_next(std::span<const RowToken> next, std::span<float> logits) = 0;
  virtual void read_next(std::span<const RowToken> next, int count, std::span<TokenLogit> likeliest);
  void check_call(std::span<const RowTokens> texts, size_t values, size_t per_text) const;
  template <class Read>
  void read_one_more(std::span<const RowToken> next, size_t values, size_t per_text, const Read& read);

  const GPT2Config config_;
  const int positions_;
  std::vector<int> lengths_; // by row
};

// For an engine that keeps nothing: every token reads its whole text again, by next_token_logits.
std::unique_ptr<Decoder> make_recomputing_decoder(EvaluableModel& model, int rows, int positions);

} // namespace gpt2
