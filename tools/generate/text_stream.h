// Streams decoded tokens as text: bytes in, whole UTF-8 characters out. It holds back what may become a stop string.
// The concatenated output equals to_valid_utf8 of the whole text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpt2 {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stop_strings); // each non-empty

  // Returns the text that is certain by now. The output ends before the first stop string.
  std::string add(std::string_view bytes);
  std::string finish(); // the rest; an incomplete character becomes U+FFFD
  bool stopped() const { return stopped_; }

 private:
  std::string take(size_t count);     // removes bytes from the front of held_
  size_t partial_stop_string() const; // bytes at the end of held_ that are a prefix of a stop string

  const std::vector<std::string> stop_strings_;
  std::string held_;
  bool stopped_ = false;
};

} // namespace gpt2
