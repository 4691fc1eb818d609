// GPT-2's byte-pair encoding.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gpt2 {

class Tokenizer {
 public:
  static constexpr uint16_t kEndOfText = 50256;

  // Reads encoder.json and vocab.bpe from a folder. Throws Error(data) with the set-up command as a hint.
  explicit Tokenizer(const std::string& folder);
  ~Tokenizer();

  const std::string& hash() const; // XXH3-128 of the two files, one after the other

  // Ordinary text only: "<|endoftext|>" in the input is text, as in tiktoken's encode_ordinary. Any bytes will do:
  // those that are not UTF-8 become single-byte tokens. Thread-safe.
  std::vector<uint16_t> encode(std::string_view text) const;
  // Throws Stopped soon after `stop` is set.
  void encode(std::string_view text, std::vector<uint16_t>& append_to, const std::atomic<bool>* stop = nullptr) const;
  std::string decode(const std::vector<uint16_t>& tokens) const; // bytes, exactly those encoded

  // --tokenizer DIR if given, else $GPT2_TOKENIZER, else .deps/gpt2_bpe beside the program or in the tree that it was
  // built in (find_in_tree). Empty if there is none.
  static std::string find_folder(const std::string& asked_for);

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

// As find_folder finds it. Throws Error(data) where its tables are not installed.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& asked_for);

} // namespace gpt2
