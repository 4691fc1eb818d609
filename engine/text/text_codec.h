// Text to tokens and back: GPT-2's BPE if its tables are installed; otherwise only words of the built-in sample decode.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/text/sample_text.h"
#include "engine/text/tokenizer.h"

namespace gpt2 {

class TextCodec {
 public:
  // `folder` as Tokenizer::find_folder returns it; empty: no tables.
  TextCodec(const std::string& folder, bool built_in_sample) : built_in_sample_(built_in_sample) {
    if (!folder.empty()) tokenizer_ = std::make_unique<Tokenizer>(folder);
  }

  bool can_decode() const { return tokenizer_ || built_in_sample_; }

  std::vector<uint16_t> encode(const std::string& text) const {
    if (text.empty()) return {};
    if (tokenizer_) return tokenizer_->encode(text);
    throw Error(ExitCode::data, "--prompt needs GPT-2's BPE tables, and they are not installed",
                "run tools/install_deps.sh, or give --tokenizer DIR");
  }

  std::string decode(const std::vector<uint16_t>& tokens) const {
    return tokenizer_ ? tokenizer_->decode(tokens) : sample_decode(tokens);
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  bool built_in_sample_;
};

} // namespace gpt2
