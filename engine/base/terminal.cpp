#include "engine/base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace gpt2 {
namespace {

std::string wrap_line(const std::string& line, size_t columns, size_t indent) {
  std::string out;
  size_t column = 0; // where `out` stands
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

} // namespace

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && term != nullptr && std::string_view(term) != "dumb";
}

bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return is_terminal() && (no_colour == nullptr || *no_colour == '\0');
}

int terminal_columns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int given = columns ? std::atoi(columns) : 0;
  return given > 0 ? given : 80;
}

size_t text_width(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
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
