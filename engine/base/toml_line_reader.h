#pragma once

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/error.h"

namespace gpt2 {

// Reads one line from left to right.
class TomlLineReader {
 public:
  TomlLineReader(const std::string& text, std::string place) : place_(std::move(place)), text_(text) {}

  bool at_end() { // skips spaces; true at a comment
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ == text_.size() || text_[at_] == '#';
  }

  std::string key() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_' ||
                                  text_[at_] == '-' || text_[at_] == '.')) {
      ++at_;
    }
    if (at_ == begin) fail("expected `key = value`");
    return text_.substr(begin, at_ - begin);
  }

  void separator(char expected, const std::string& without_value) { // = or :
    if (at_end() || text_[at_] != expected) fail(std::string("expected ") + expected + " after the key");
    ++at_;
    if (at_end()) fail(without_value);
  }

  std::string value(std::string_view ends = "#") { // without quotes it ends at white space or one of these
    if (text_[at_] == '"') return basic_string();
    if (text_[at_] == '\'') return literal_string();
    const size_t begin = at_;
    while (at_ < text_.size() && !is_space(text_[at_]) && ends.find(text_[at_]) == std::string_view::npos) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    if (word != "true" && word != "false" && word.find_first_of("0123456789") == std::string::npos) {
      fail("put text in quotes: \"" + word + "\"");
    }
    return word;
  }

  std::string yaml_value() { // text without quotes ends at the end of the line or at a comment
    if (text_[at_] == '"') return basic_string();
    if (text_[at_] == '\'') return literal_string();
    if (text_[at_] == '[' || text_[at_] == '{') fail("lists and maps are not supported: write one value");
    const size_t begin = at_;
    at_ = std::min(text_.find(" #", at_), text_.size());
    while (is_space(text_[at_ - 1])) --at_;
    const std::string word = text_.substr(begin, at_ - begin);
    return word == "yes" ? "true" : word == "no" ? "false" : word;
  }

  [[noreturn]] void fail(const std::string& reason) const { throw Error(ExitCode::usage, place_ + ": " + reason); }

 private:
  std::string basic_string() {
    std::string out;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return ++at_, out;
      out += c == '\\' ? escape() : c;
    }
    fail("a string is not closed");
  }

  std::string literal_string() {
    const size_t end = text_.find('\'', at_ + 1);
    if (end == std::string::npos) fail("a string is not closed");
    const std::string out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out;
  }

  char escape() { // at the backslash; leaves at_ on the last character of the escape
    constexpr std::string_view kEscapes = "ntr\"\\", kMeanings = "\n\t\r\"\\";
    if (++at_ == text_.size()) fail("a string is not closed");
    const char c = text_[at_];
    if (const size_t known = kEscapes.find(c); known != std::string_view::npos) return kMeanings[known];
    if (c != 'u') fail(std::string("unknown escape \\") + c);
    unsigned code = 0; // toml_string() writes control characters so
    if (std::sscanf(text_.c_str() + at_ + 1, "%4x", &code) != 1 || code > 0x7F)
      fail("only \\u0000 to \\u007F are supported");
    at_ += 4;
    return static_cast<char>(code);
  }

  static bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)); }

  std::string place_;

 protected:
  const std::string& text_;
  size_t at_ = 0;
};

} // namespace gpt2
