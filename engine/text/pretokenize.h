// Cuts text into the pieces that byte-pair merges never cross: words with their leading space, numbers, runs of
// punctuation, white space. GPT-2's pattern, matched by PCRE2; plain ASCII pieces take a hand-written path that the
// tests hold equal to PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace gpt2 {

// The compiled pattern. Immutable, so many Splitters may share it.
class SplitPattern {
 public:
  SplitPattern();
  ~SplitPattern();
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;

 private:
  friend class Splitter;
  void* code_; // pcre2_code
};

// One per thread: holds the match data that PCRE2 writes into. The pattern must outlive it.
class Splitter {
 public:
  explicit Splitter(const SplitPattern& pattern);
  ~Splitter();
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  // End of the piece that starts at `begin`. `text` must be valid UTF-8 and begin < text.size().
  size_t next(std::string_view text, size_t begin) const {
    const size_t end = next_ascii(text, begin);
    return end ? end : next_by_pattern(text, begin);
  }
  size_t next_by_pattern(std::string_view text, size_t begin) const;

  // 0 where the answer could depend on a character beyond ASCII.
  static size_t next_ascii(std::string_view text, size_t begin);

 private:
  const SplitPattern& pattern_;
  void* match_; // pcre2_match_data
};

} // namespace gpt2
