// Text from a model: one token at a time, reproducible from a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/model/model.h"

namespace gpt2 {

struct SampleSettings {
  int tokens = 64;          // to write after the prompt
  float temperature = 0.8f; // 0: always the likeliest token
  int top_k = 50;           // 0: all
  uint64_t seed = 1;
};

// The token that `uniform` in [0, 1) falls on, among the top_k likeliest at this temperature. A pure function; ties
// go to the lower id. `logits` holds real tokens only, so padding is never drawn.
int32_t choose_token(std::span<const float> logits, float temperature, int top_k, double uniform);

// Prompt and continuation. Stops early at end-of-text, which is not returned. `stream` tells one sample of a seed from
// the next (the training step, say). A context longer than the model's slides. `stop` is asked before each token: true
// ends the text there.
std::vector<uint16_t> generate(
    EvaluableModel& model, std::vector<uint16_t> prompt, const SampleSettings& settings, uint64_t stream,
    const std::function<bool()>& stop = [] { return false; });

// Between text and tokens: GPT-2's BPE where its tables are installed; without them the built-in sample's own words can
// still be printed.
class TextCodec {
 public:
  // `folder` as Tokenizer::find_folder returns it; empty: no tables.
  TextCodec(const std::string& folder, bool built_in_sample);

  bool can_decode() const { return tokenizer_ || built_in_sample_; }
  std::vector<uint16_t> encode(const std::string& text) const; // throws Error(data) where there are no tables
  std::string decode(const std::vector<uint16_t>& tokens) const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  bool built_in_sample_;
};

} // namespace gpt2
