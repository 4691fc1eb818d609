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

  // "<|endoftext|>" in the input is ordinary text, as in tiktoken's encode_ordinary. Bytes that are not UTF-8 become
  // single-byte tokens. Thread-safe.
  std::vector<uint16_t> encode(std::string_view text) const;
  // Throws Stopped soon after `stop` is set.
  void encode(std::string_view text, std::vector<uint16_t>& append_to, const std::atomic<bool>* stop = nullptr) const;
  std::string decode(const std::vector<uint16_t>& tokens) const; // exactly the bytes that were encoded

  // --tokenizer DIR if given, else $GPT2_TOKENIZER, else .deps/gpt2_bpe next to the program or in its source tree
  // (find_in_tree). Empty: none found.
  static std::string find_folder(const std::string& asked_for);

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};

// Opens the folder of find_folder(). Throws Error(data) if the tables are not installed.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& asked_for);

} // namespace gpt2
