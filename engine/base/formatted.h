// Short texts.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <type_traits>
#include <vector>

namespace gpt2 {

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// Texts and numbers one after another: concat("step ", 3) is "step 3".
template <class... Values>
std::string concat(const Values&... values) {
  std::string out;
  const auto append = [&out](const auto& value) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>)
      out += std::to_string(value);
    else
      out += value;
  };
  (append(values), ...);
  return out;
}

// A time as strftime(3) prints it; `calendar`: gmtime_r or localtime_r.
inline std::string date_text(const char* format, std::tm* (*calendar)(const std::time_t*, std::tm*),
                             std::time_t time = std::time(nullptr)) {
  std::tm date{};
  calendar(&time, &date);
  char text[64];
  std::strftime(text, sizeof text, format, &date);
  return text;
}

// ASCII only.
inline std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// "1 step", "2 steps"
inline std::string counted(int64_t number, const std::string& thing) {
  return std::to_string(number) + " " + thing + (number == 1 ? "" : "s");
}

// "a, b, c"; with a word for the last: "a, b or c"
template <class Value>
std::string listed(const std::vector<Value>& values, const std::string& separator = ", ",
                   const std::string& last = "") {
  std::string out;
  for (const Value& value : values) {
    if (&value != &values.front()) out += last.empty() || &value != &values.back() ? separator : last;
    out += concat(value);
  }
  return out;
}

} // namespace gpt2
