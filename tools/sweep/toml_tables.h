// TOML with sections and lists, as the files of bin/sweep have it.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// A file with sections: keys before the first, then [NAME], or [[NAME]], which may repeat.
struct TomlTable {
  std::string name; // "": before the first section
  bool repeats;     // [[NAME]]
  int line;         // of the section; 0: before the first
  struct Entry {
    std::string key;
    std::vector<std::string> values; // unquoted and unescaped
    bool is_list;                    // [1, 2], on one line
    int line;
  };
  std::vector<Entry> entries;
};
// Throws Error(usage) that names `origin` and the line; also for a duplicate [NAME].
std::vector<TomlTable> read_toml_tables(const std::string& text, const std::string& origin);

} // namespace gpt2
