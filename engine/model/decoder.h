// Autoregressive decoding with a KV cache: a further token costs one token's work, not the whole text's. Rows are
// independent texts of different lengths.
//
//   auto decoder = model.make_decoder(rows, positions);
//   decoder->prefill({{row, prompt}, ...}, logits)        reads prompts, into all rows or some
//   decoder->decode({{row, token}, ...}, logits)          appends one token per row
//   decoder->decode({{row, token}, ...}, 50, likeliest)   the same, and returns the top 50 logits only
//
// A decoder uses its model's current weights: finish texts before the next training step. The model must outlive it.
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
  int positions() const { return positions_; } // maximum length of a row
  int length(int row) const { return lengths_[static_cast<size_t>(row)]; }

  // Clears each row and reads its prompt of 1 to positions() tokens. A row occurs at most once per call.
  // logits: (prompts, vocab) after each row's last token, without the padded vocabulary.
  void prefill(std::span<const RowTokens> prompts, std::span<float> logits);

  // Appends one token to prefilled rows that are not full. logits: (next, vocab).
  void decode(std::span<const RowToken> next, std::span<float> logits);

  // The same with the `count` highest logits alone, 1 to kMaxTopK: (next, count), unsorted. A row with a NaN returns
  // one.
  void decode(std::span<const RowToken> next, int count, std::span<TokenLogit> likeliest);

 protected:
  Decoder(const GPT2Config& config, int rows, int positions); // positions: at most config.seq_len

 private:
  virtual void read_prompts(std::span<const RowTokens> prompts, std::span<float> logits) = 0;
  // The token's position is length(row); the caller increments it afterwards.
  virtual void read_next(std::span<const RowToken> next, std::span<float> logits) = 0;
  virtual void read_next(std::span<const RowToken> next, int count, std::span<TokenLogit> likeliest);
  void check_call(std::span<const RowTokens> texts, size_t values, size_t per_text) const;
  template <class Read>
  void read_one_more(std::span<const RowToken> next, size_t values, size_t per_text, const Read& read);

  const GPT2Config config_;
  const int positions_;
  std::vector<int> lengths_; // by row
};

// Without a KV cache: every token recomputes its whole text with next_token_logits.
std::unique_ptr<Decoder> make_recomputing_decoder(EvaluableModel& model, int rows, int positions);

} // namespace gpt2
