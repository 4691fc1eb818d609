#include "engine/base/toml.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>
#include <sstream>
#include <utility>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

// Reads one line from left to right.
class LineReader {
 public:
  LineReader(const std::string& text, std::string place) : text_(text), place_(std::move(place)) {}

  bool at_end() { // skips spaces; true at a comment
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
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

  void equals() {
    if (at_end() || text_[at_] != '=') fail("expected = after the key");
    ++at_;
    if (at_end()) fail("expected a value after =");
  }

  std::string value() {
    if (text_[at_] == '"') return basic_string();
    if (text_[at_] == '\'') return literal_string();
    const size_t begin = at_;
    while (at_ < text_.size() && !ends_word(text_[at_])) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    if (word != "true" && word != "false" && word.find_first_of("0123456789") == std::string::npos) {
      fail("put text in quotes: \"" + word + "\"");
    }
    return word;
  }

  std::vector<std::string> list() { // at the bracket
    std::vector<std::string> values;
    for (in_list_ = true, ++at_;;) {
      if (at_end()) fail("a list is not closed: write it on one line");
      if (text_[at_] == ']') break;
      values.push_back(value());
      if (at_end()) continue;
      if (text_[at_] == ',')
        ++at_;
      else if (text_[at_] != ']')
        fail("expected , or ] in a list");
    }
    in_list_ = false;
    ++at_;
    return values;
  }
  bool at(char c) const { return text_[at_] == c; }

  std::pair<std::string, bool> section() { // [NAME] or [[NAME]] (true)
    const bool repeats = text_.compare(at_, 2, "[[") == 0;
    at_ += repeats ? 2 : 1;
    if (at_end()) fail("expected [NAME] or [[NAME]]");
    const std::string name = key(), end = repeats ? "]]" : "]";
    if (at_end() || text_.compare(at_, end.size(), end) != 0) fail("expected " + end + " after " + name);
    at_ += end.size();
    return {name, repeats};
  }

  void colon() {
    if (at_end() || text_[at_] != ':') fail("expected : after the key");
    ++at_;
    if (at_end()) fail("expected a value after the colon: nested keys are not supported");
  }

  std::string yaml_value() { // text without quotes ends at the end of the line or at a comment
    if (text_[at_] == '"') return basic_string();
    if (text_[at_] == '\'') return literal_string();
    if (text_[at_] == '[' || text_[at_] == '{') fail("lists and maps are not supported: write one value");
    const size_t begin = at_;
    at_ = std::min(text_.find(" #", at_), text_.size());
    while (std::isspace(static_cast<unsigned char>(text_[at_ - 1]))) --at_;
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
    if (++at_ == text_.size()) fail("a string is not closed");
    switch (text_[at_]) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case '"':
        return '"';
      case '\\':
        return '\\';
      case 'u': { // toml_string() writes control characters so
        unsigned code = 0;
        if (std::sscanf(text_.c_str() + at_ + 1, "%4x", &code) != 1 || code > 0x7F)
          fail("only \\u0000 to \\u007F are supported");
        at_ += 4;
        return static_cast<char>(code);
      }
      default:
        fail(std::string("unknown escape \\") + text_[at_]);
    }
  }

  bool ends_word(char c) const {
    return std::isspace(static_cast<unsigned char>(c)) || c == '#' || (in_list_ && (c == ',' || c == ']'));
  }

  const std::string& text_;
  std::string place_;
  size_t at_ = 0;
  bool in_list_ = false;
};

// `read_line(reader, line)` returns key and value of a line that is not empty.
template <class ReadLine>
std::vector<TomlLine> read_lines(const std::string& text, const std::string& origin, ReadLine read_line) {
  std::vector<TomlLine> lines;
  std::set<std::string> seen;
  std::istringstream stream(text);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    LineReader reader(line, origin + ":" + std::to_string(number));
    if (reader.at_end()) continue;
    const auto [key, value] = read_line(reader, line);
    if (!reader.at_end()) reader.fail("unexpected text after the value of " + key);
    if (!seen.insert(key).second) reader.fail(key + " occurs twice");
    lines.push_back({key, value, number});
  }
  return lines;
}

} // namespace

std::vector<TomlLine> read_toml(const std::string& text, const std::string& origin) {
  return read_lines(text, origin, [](LineReader& reader, const std::string& line) {
    if (line[line.find_first_not_of(" \t")] == '[')
      reader.fail("sections are not supported: write every key at the top level");
    const std::string key = reader.key();
    reader.equals();
    return std::pair(key, reader.value());
  });
}

std::vector<TomlTable> read_toml_tables(const std::string& text, const std::string& origin) {
  std::vector<TomlTable> tables{{"", false, 0, {}}};
  std::istringstream stream(text);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    LineReader reader(line, origin + ":" + std::to_string(number));
    if (reader.at_end()) continue;
    if (reader.at('[')) {
      const auto [name, repeats] = reader.section();
      for (const TomlTable& table : tables)
        if (table.name == name && !(repeats && table.repeats)) reader.fail("[" + name + "] occurs twice");
      tables.push_back({name, repeats, number, {}});
    } else {
      TomlTable& table = tables.back();
      const std::string key = reader.key();
      for (const TomlTable::Entry& entry : table.entries)
        if (entry.key == key) reader.fail(key + " occurs twice");
      reader.equals();
      const bool is_list = reader.at('[');
      table.entries.push_back({key, is_list ? reader.list() : std::vector{reader.value()}, is_list, number});
    }
    if (!reader.at_end()) reader.fail("unexpected text at the end of the line");
  }
  return tables;
}

std::vector<TomlLine> read_yaml(const std::string& text, const std::string& origin) {
  const std::string body = text.rfind("---", 0) == 0 ? "#" + text : text; // skips the document marker
  return read_lines(body, origin, [](LineReader& reader, const std::string& line) {
    if (line[0] == ' ' || line[0] == '\t' || line.rfind("- ", 0) == 0)
      reader.fail("nested keys and lists are not supported: write every `key: value` at the top level");
    const std::string key = reader.key();
    reader.colon();
    return std::pair(key, reader.yaml_value());
  });
}

std::string toml_string(const std::string& value) {
  std::string out = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (c == '\n')
      out += "\\n";
    else if (byte < 0x20 || byte == 0x7F) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      out += escaped;
    } else
      out += c;
  }
  return out + '"';
}

} // namespace gpt2
