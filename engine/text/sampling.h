// Which token comes next: pure functions of the logits and a number in [0, 1).
//
// The filters stand in the order that transformers has, and each sees what those before it left: repetition penalty,
// temperature, top-k, top-p, min-p. One difference: of equally likely tokens top-k keeps the lower ids and exactly k,
// where transformers keeps all that equal the k-th.
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
  float top_p = 1.0f;              // the fewest tokens that have this probability together; 1: all
  float min_p = 0.0f;              // tokens at least this times as likely as the likeliest; 0: all
  float repetition_penalty = 1.0f; // above 1: tokens that the text has become less likely
};

// Logits of tokens in `text` are divided by the penalty, negative ones multiplied; each once (Keskar et al., CTRL).
void penalize_repetition(std::span<float> logits, std::span<const int32_t> text, float penalty);

struct TokenWeight {
  int32_t token;
  double weight; // its probability over that of the likeliest
};

// What temperature, top-k, top-p and min-p leave, likeliest first, at least one; equals by id. NaN counts as least
// likely. `logits` holds real tokens only, so padding is never drawn. Temperature 0: the likeliest alone.
std::vector<TokenWeight> candidates(std::span<const float> logits, const SamplingSettings& settings);
// The same from the likeliest tokens in order, of which there are likeliest_needed() at least.
std::vector<TokenWeight> candidates(std::span<const TokenLogit> likeliest, const SamplingSettings& settings);

// How many of the likeliest tokens the candidates come from; none: more than a decoder hands over, or all logits.
std::optional<size_t> likeliest_needed(const SamplingSettings& settings, size_t vocab);

// The token that `uniform` falls on when the candidates share [0, 1) by weight.
int32_t draw(std::span<const TokenWeight> candidates, double uniform);

} // namespace gpt2
