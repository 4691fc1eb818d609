// Top-k logits for sampling: a decoder on a GPU copies 50 of 50,257 logits, 400 bytes per row instead of 200 KB.
#pragma once

#include <span>
#include <vector>

#include "kernels/backend.h"

namespace gpt2 {

struct TokenLogit {
  float logit;
  int32_t token;
};

// Ties: lower id first.
inline bool likelier(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The `count` highest logits in order; NaN counts as -infinity.
std::vector<TokenLogit> top_k_tokens(std::span<const float> logits, size_t count);

// Top-k of many rows, unordered; NaN counts as the highest. GPU only.
struct TopKTokens {
  TokenLogit* out;    // (rows, count)
  const bf16* logits; // (rows, padded_vocab)
  int rows, count, vocab, padded_vocab;
};
void top_k_tokens(CudaStream&, const TopKTokens&);
constexpr int kMaxTopK = 1024;

} // namespace gpt2
