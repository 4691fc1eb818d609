// The part of TOML that option files need: `key = value` lines with strings, numbers and booleans, and comments.
// CLI11 2.1's own reader truncates strings at '#', has no escapes and merges duplicate keys.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

struct TomlLine {
  std::string key;
  std::string value; // unquoted and unescaped
  int line;          // from 1
};

// Throws Error(usage) that names `origin` and the line.
std::vector<TomlLine> read_toml(const std::string& text, const std::string& origin);

// The same lines from YAML as option files use it: flat `key: value` lines, text with or without quotes, comments,
// `---`.
std::vector<TomlLine> read_yaml(const std::string& text, const std::string& origin);

std::string toml_string(const std::string& value); // quoted and escaped

} // namespace gpt2
