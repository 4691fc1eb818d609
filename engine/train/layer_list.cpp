#include "engine/train/layer_list.h"

#include <charconv>
#include <optional>
#include <set>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else if (c != ' ')
      parts.back() += c;
  }
  return parts;
}

std::optional<int> block_of(const std::string& word, int layers) {
  if (word == "first") return 0;
  if (word == "last") return layers - 1;
  int number = -1;
  const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (status != std::errc() || end != word.data() + word.size() || number < 0 || number >= layers) return std::nullopt;
  return number;
}

} // namespace

std::vector<int> parse_layer_list(const std::string& flag, const std::string& list, int layers) {
  std::set<int> blocks;
  if (list.empty()) return {};
  for (const std::string& item : split(list, ',')) {
    const std::vector<std::string> ends = split(item, '-');
    const std::optional<int> first = block_of(ends.front(), layers), last = block_of(ends.back(), layers);
    if (!first || !last || ends.size() > 2 || *first > *last) {
      throw Error(ExitCode::usage, flag + ": '" + item + "' names no block of this model",
                  "give first, last, numbers from 0 to " + std::to_string(layers - 1) + " and ranges, as first,2-3");
    }
    for (int block = *first; block <= *last; ++block) blocks.insert(block);
  }
  return {blocks.begin(), blocks.end()};
}

} // namespace gpt2
