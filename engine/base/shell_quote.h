#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace gpt2 {

// In quotes if a POSIX shell needs them to read it as one word.
inline std::string shell_quote(const std::string& word) {
  const bool harmless = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) || std::string_view("/._-+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (harmless) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

} // namespace gpt2
