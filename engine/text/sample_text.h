// The built-in sample: simple English stories from a small probabilistic grammar. The first run needs no download, the
// generated text is readable, and the minimal loss is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2 {

struct SampleTokens {
  std::vector<uint16_t> tokens; // stories, each after an end-of-text token; GPT-2 token ids
  double entropy_per_token;     // nats: the grammar's exact -log p of these tokens / their number
};

// The first stories of an endless series: story i is a pure function of (seed, i). The grammar holds the token of every
// word, so the sample needs no tokenizer tables.
SampleTokens sample_tokens(uint64_t seed, int64_t stories);

// Decodes the words of the sample without the BPE tables; other tokens become <ID>.
std::string sample_decode(const std::vector<uint16_t>& tokens);

} // namespace gpt2
