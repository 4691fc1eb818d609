// The terminal of stdout or stderr: size, colors, and text fitted to its width.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace gpt2 {

bool is_terminal(int descriptor = STDOUT_FILENO); // it is a terminal and TERM is not dumb
bool wants_color(int descriptor = STDOUT_FILENO); // a terminal, and NO_COLOR (no-color.org) is not set
int terminal_columns(); // now: a window can be resized; COLUMNS if neither is a terminal, else 80
int terminal_rows();    // likewise; LINES, else 24

enum class Color { plain, bold, dim, red, green, yellow, cyan };
std::string colored(const std::string& text, Color color); // with escape sequences; plain: unchanged

size_t text_width(std::string_view utf8); // in characters

// Breaks every line of `text` at spaces so that none is wider than `columns`; continuation lines are indented by
// `indent` spaces. A word wider than a line stays whole: users copy paths.
std::string wrap_text(const std::string& text, size_t columns, size_t indent);

} // namespace gpt2
