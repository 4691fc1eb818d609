#include "tools/sweep/toml_tables.h"

#include <sstream>
#include <utility>

#include "engine/base/toml_line_reader.h"

namespace gpt2 {
namespace {

class TableReader : public TomlLineReader {
 public:
  using TomlLineReader::TomlLineReader;

  std::vector<std::string> list() { // at the bracket
    std::vector<std::string> values;
    for (++at_;;) {
      if (at_end()) fail("a list is not closed: write it on one line");
      if (text_[at_] == ']') break;
      values.push_back(value("#,]"));
      if (at_end()) continue;
      if (text_[at_] == ',')
        ++at_;
      else if (text_[at_] != ']')
        fail("expected , or ] in a list");
    }
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
};

} // namespace

std::vector<TomlTable> read_toml_tables(const std::string& text, const std::string& origin) {
  std::vector<TomlTable> tables{{"", false, 0, {}}};
  std::istringstream stream(text);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    TableReader reader(line, origin + ":" + std::to_string(number));
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
      reader.separator('=', "expected a value after =");
      const bool is_list = reader.at('[');
      table.entries.push_back({key, is_list ? reader.list() : std::vector{reader.value()}, is_list, number});
    }
    if (!reader.at_end()) reader.fail("unexpected text at the end of the line");
  }
  return tables;
}

} // namespace gpt2
