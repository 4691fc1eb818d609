#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// The parts between separators, empty ones included: n separators give n + 1 parts.
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
