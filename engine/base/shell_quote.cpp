#include "engine/base/shell_quote.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace gpt2 {

std::string shell_quote(const std::string& word) {
  const bool harmless = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) || std::string_view("/._-+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (harmless) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

} // namespace gpt2
