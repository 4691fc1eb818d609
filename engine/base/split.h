// A text cut at a character.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// What stands between separators, empty ones too: one part more than there are separators.
inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

} // namespace gpt2
