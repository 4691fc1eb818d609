#include "tools/report/cut_text.h"

#include <string_view>

#include "engine/system/terminal.h"

namespace gpt2 {

std::string cut_to(const std::string& utf8, size_t columns, Cut cut) {
  const size_t width = text_width(utf8);
  if (width <= columns) return utf8;
  const size_t kept = columns > 3 ? columns - 3 : 0, split = cut == Cut::end ? kept : width - kept;
  const auto begins_character = [&](size_t at) { return text_width(std::string_view(utf8).substr(at, 1)) == 1; };
  size_t at = 0, characters = 0; // `split` of them precede `at`
  while (at < utf8.size() && (characters < split || !begins_character(at))) characters += begins_character(at++);
  return cut == Cut::end ? utf8.substr(0, at) + "..." : "..." + utf8.substr(at);
}

} // namespace gpt2
