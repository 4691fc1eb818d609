#include "engine/system/terminal.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>

namespace gpt2 {
namespace {

std::string wrap_line(const std::string& line, size_t columns, size_t indent) {
  std::string out;
  size_t column = 0; // current column of `out`
  for (size_t begin = 0; begin < line.size();) {
    const size_t blanks_end = std::min(line.find_first_not_of(' ', begin), line.size());
    const size_t end = std::min(line.find(' ', blanks_end), line.size());
    const std::string blanks = line.substr(begin, blanks_end - begin), word = line.substr(blanks_end, end - blanks_end);
    const size_t width = text_width(word);
    if (begin > 0 && column > indent && column + blanks.size() + width > columns) {
      out += "\n" + std::string(indent, ' ') + word;
      column = indent + width;
    } else {
      out += blanks + word;
      column += blanks.size() + width;
    }
    begin = end;
  }
  return out;
}

int extent(unsigned short winsize::*member, const char* variable, int fallback) {
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    winsize size = {};
    if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.*member > 0) return size.*member;
  }
  const char* text = std::getenv(variable);
  const int given = text ? std::atoi(text) : 0;
  return given > 0 ? given : fallback;
}

} // namespace

bool is_terminal(int descriptor) {
  const char* term = std::getenv("TERM");
  return isatty(descriptor) && term != nullptr && std::string_view(term) != "dumb";
}

bool wants_color(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  return is_terminal(descriptor) && (no_color == nullptr || *no_color == '\0');
}

int terminal_columns() { return extent(&winsize::ws_col, "COLUMNS", 80); }

int terminal_rows() { return extent(&winsize::ws_row, "LINES", 24); }

std::string colored(const std::string& text, Color color) {
  static constexpr const char* kCodes[] = {"", "1", "2", "31", "32", "33", "36"};
  return color == Color::plain ? text : std::string("\x1b[") + kCodes[static_cast<int>(color)] + "m" + text + "\x1b[0m";
}

size_t text_width(std::string_view utf8) {
  const auto begins_character = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
  return static_cast<size_t>(std::ranges::count_if(utf8, begins_character));
}

std::string wrap_text(const std::string& text, size_t columns, size_t indent) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += (begin > 0 ? "\n" : "") + wrap_line(text.substr(begin, end - begin), columns, indent);
    begin = end + 1;
  }
  return out;
}

} // namespace gpt2
