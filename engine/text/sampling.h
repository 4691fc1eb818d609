// Samples the next token: pure functions of the logits and a number in [0, 1).
//
// Filters run in the order of transformers, each on the tokens that the one before kept: repetition penalty,
// temperature, top-k, top-p, min-p. One difference: among equally likely tokens top-k keeps the lower ids and exactly k
// tokens; transformers keeps all that equal the k-th.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/top_k.h"

namespace gpt2 {

struct SamplingSettings {
  float temperature = 0.8f;        // 0: always the likeliest token
  int top_k = 50;                  // 0: all
  float top_p = 1.0f;              // the fewest tokens with this total probability; 1: all
  float min_p = 0.0f;              // tokens with at least min_p times the highest probability; 0: all
  float repetition_penalty = 1.0f; // above 1: tokens of the text become less likely
};

// Divides the logits of tokens in `text` by the penalty, multiplies negative ones; each token once (CTRL, Keskar et
// al.).
void penalize_repetition(std::span<float> logits, std::span<const int32_t> text, float penalty);

struct TokenWeight {
  int32_t token;
  double weight; // probability / highest probability
};

// Tokens after temperature, top-k, top-p and min-p: likeliest first, equals by id, at least one. NaN ranks last.
// `logits` excludes the padded vocabulary, so padding is never drawn. Temperature 0: only the likeliest token.
std::vector<TokenWeight> candidates(std::span<const float> logits, const SamplingSettings& settings);
// The same from the likeliest tokens, sorted: at least likeliest_needed() of them.
std::vector<TokenWeight> candidates(std::span<const TokenLogit> likeliest, const SamplingSettings& settings);

// Number of likeliest tokens that candidates() needs; nullopt: more than kMaxTopK, or all logits.
std::optional<size_t> likeliest_needed(const SamplingSettings& settings, size_t vocab);

// Inverse-CDF sampling: the token at `uniform` when the weights divide [0, 1).
int32_t draw(std::span<const TokenWeight> candidates, double uniform);

} // namespace gpt2
