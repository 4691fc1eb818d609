// The built-in sample: simple English stories from a small probabilistic grammar, so that the first run needs no
// download, what the model writes can be read, and the best possible loss is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2 {

// Story number `index` of the endless series; a pure function of (seed, index).
std::string sample_story(uint64_t seed, uint64_t index);

struct SampleTokens {
  std::vector<uint16_t> tokens; // stories, each after an end-of-text token; GPT-2 token ids
  double entropy_per_token;     // nats: the grammar's exact -log p of these tokens / their number
};

// Token ids are written into the grammar (every word is one known sequence of GPT-2 tokens), so no tables are
// needed to make the sample.
SampleTokens sample_tokens(uint64_t seed, int64_t stories);

// Decodes the sample's own vocabulary, for printing samples where the BPE tables are missing.
std::string sample_decode(const std::vector<uint16_t>& tokens);

} // namespace gpt2
