// Short texts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace gpt2 {

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// "1 step", "2 steps"
inline std::string counted(int64_t number, const std::string& thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

// "a, b, c"
inline std::string listed(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

} // namespace gpt2
