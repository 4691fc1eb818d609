#include "engine/base/toml.h"

#include <set>
#include <sstream>
#include <utility>

#include "engine/base/formatted.h"
#include "engine/base/toml_line_reader.h"

namespace gpt2 {
namespace {

// `read_line(reader, line)` returns key and value of a line that is not empty.
template <class ReadLine>
std::vector<TomlLine> read_lines(const std::string& text, const std::string& origin, ReadLine read_line) {
  std::vector<TomlLine> lines;
  std::set<std::string> seen;
  std::istringstream stream(text);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    TomlLineReader reader(line, origin + ":" + std::to_string(number));
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
  return read_lines(text, origin, [](TomlLineReader& reader, const std::string& line) {
    if (line[line.find_first_not_of(" \t")] == '[')
      reader.fail("sections are not supported: write every key at the top level");
    const std::string key = reader.key();
    reader.separator('=', "expected a value after =");
    return std::pair(key, reader.value());
  });
}

std::vector<TomlLine> read_yaml(const std::string& text, const std::string& origin) {
  const std::string body = text.rfind("---", 0) == 0 ? "#" + text : text; // skips the document marker
  return read_lines(body, origin, [](TomlLineReader& reader, const std::string& line) {
    if (line[0] == ' ' || line[0] == '\t' || line.rfind("- ", 0) == 0)
      reader.fail("nested keys and lists are not supported: write every `key: value` at the top level");
    const std::string key = reader.key();
    reader.separator(':', "expected a value after the colon: nested keys are not supported");
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
    else if (byte < 0x20 || byte == 0x7F)
      out += formatted("\\u%04x", byte);
    else
      out += c;
  }
  return out + '"';
}

} // namespace gpt2
