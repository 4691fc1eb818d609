// A text on its way to the reader: bytes come in pieces as tokens are, whole characters go out, and nothing that is or
// may become a stop string. What comes out in pieces is what to_valid_utf8 makes of the whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpt2 {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stop_strings); // none of them empty

  // What can be shown now. After a stop string, which is not shown, nothing more is.
  std::string add(std::string_view bytes);
  std::string finish(); // what was held back; half a character becomes U+FFFD
  bool stopped() const { return stopped_; }

 private:
  std::string take(size_t count);   // from the front of what is held
  size_t begun_stop_string() const; // bytes at the end of what is held that a stop string may begin with

  const std::vector<std::string> stop_strings_;
  std::string held_;
  bool stopped_ = false;
};

} // namespace gpt2
