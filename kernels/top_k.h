// The likeliest next tokens: what sampling needs of a row of logits. Of 50,257 logits 50 stay, so that a decoder on a
// GPU hands over 400 bytes a row and not 200 KB.
#pragma once

#include <span>
#include <vector>

#include "kernels/backend.h"

namespace gpt2 {

struct TokenLogit {
  float logit;
  int32_t token;
};

// Of equals the lower id first.
inline bool likelier(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The `count` likeliest in order, NaN as -infinity.
std::vector<TokenLogit> top_k_tokens(std::span<const float> logits, size_t count);

// The same of many rows, each in no order, and a NaN as the likeliest of all. GPU only.
struct TopKTokens {
  TokenLogit* out;    // (rows, count)
  const bf16* logits; // (rows, padded_vocab)
  int rows, count, vocab, padded_vocab;
};
void top_k_tokens(CudaStream&, const TopKTokens&);
constexpr int kMaxTopK = 1024;

} // namespace gpt2
