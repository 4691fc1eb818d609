// Pre-tokenization: splits text into words with their leading space, numbers, punctuation and white space. Byte-pair
// merges do not cross these boundaries. PCRE2 matches GPT-2's pattern; ASCII words take a hand-written path, which the
// tests compare with PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace gpt2 {

// The compiled pattern. Immutable: Splitters share it.
class SplitPattern {
 public:
  SplitPattern();

 private:
  friend class Splitter;
  std::unique_ptr<void, void (*)(void*)> code_; // pcre2_code
};

// One per thread: holds the match data that PCRE2 writes into. The pattern must outlive it.
class Splitter {
 public:
  explicit Splitter(const SplitPattern& pattern);

  // End of the word that starts at `begin`. `text` must be valid UTF-8 and begin < text.size().
  size_t next(std::string_view text, size_t begin) const {
    const size_t end = next_ascii(text, begin);
    return end ? end : next_by_pattern(text, begin);
  }
  size_t next_by_pattern(std::string_view text, size_t begin) const;

  // 0: the result may depend on a character beyond ASCII.
  static size_t next_ascii(std::string_view text, size_t begin);

 private:
  const SplitPattern& pattern_;
  std::unique_ptr<void, void (*)(void*)> match_; // pcre2_match_data
};

} // namespace gpt2
