// printf into a string, for short texts.
#pragma once

#include <cstdio>
#include <string>

namespace gpt2 {

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

} // namespace gpt2
