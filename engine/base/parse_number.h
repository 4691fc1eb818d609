#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace gpt2 {

// The number that is all of `text`; nullopt: no number, more than a number, or out of range.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  return status == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// The shortest text that parse_number() reads as the same number.
template <class Number>
std::string shortest_text(Number number) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

} // namespace gpt2
