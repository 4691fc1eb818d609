// Pre-tokenization: splits text into words with their leading space, numbers, punctuation and white space. Byte-pair
// merges do not cross these boundaries. PCRE2 matches GPT-2's pattern; ASCII words take a hand-written path, which the
// tests compare with PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace gpt2 {

// The compiled pattern, and the match data that PCRE2 writes into: one per thread.
class Splitter {
 public:
  Splitter();

  // End of the word that starts at `begin`. `text` must be valid UTF-8 and begin < text.size().
  size_t next(std::string_view text, size_t begin) const {
    const size_t end = next_ascii(text, begin);
    return end ? end : next_by_pattern(text, begin);
  }
  size_t next_by_pattern(std::string_view text, size_t begin) const;

  // 0: the result may depend on a character beyond ASCII.
  static size_t next_ascii(std::string_view text, size_t begin);

 private:
  std::unique_ptr<void, void (*)(void*)> pattern_; // pcre2_code
  std::unique_ptr<void, void (*)(void*)> match_;   // pcre2_match_data
};

} // namespace gpt2
