#include "engine/text/text_codec.h"

#include "engine/base/error.h"
#include "engine/text/sample_text.h"

namespace gpt2 {

TextCodec::TextCodec(const std::string& folder, bool built_in_sample) : built_in_sample_(built_in_sample) {
  if (!folder.empty()) tokenizer_ = std::make_unique<Tokenizer>(folder);
}

std::vector<uint16_t> TextCodec::encode(const std::string& text) const {
  if (text.empty()) return {};
  if (!tokenizer_) {
    throw Error(ExitCode::data, "--prompt needs GPT-2's BPE tables, and they are not installed",
                "run tools/install_deps.sh, or give --tokenizer DIR");
  }
  return tokenizer_->encode(text);
}

std::string TextCodec::decode(const std::vector<uint16_t>& tokens) const {
  return tokenizer_ ? tokenizer_->decode(tokens) : sample_decode(tokens);
}

} // namespace gpt2
