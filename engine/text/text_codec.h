// Text to tokens and back: GPT-2's BPE if its tables are installed; otherwise only words of the built-in sample decode.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace gpt2 {

class TextCodec {
 public:
  // `folder` as Tokenizer::find_folder returns it; empty: no tables.
  TextCodec(const std::string& folder, bool built_in_sample);

  bool can_decode() const { return tokenizer_ || built_in_sample_; }
  std::vector<uint16_t> encode(const std::string& text) const; // throws Error(data) without tables
  std::string decode(const std::vector<uint16_t>& tokens) const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  bool built_in_sample_;
};

} // namespace gpt2
