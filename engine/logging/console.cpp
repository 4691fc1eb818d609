#include "engine/logging/console.h"

#include <algorithm>
#include <limits>
#include <ostream>

#include "engine/base/formatted.h"

namespace gpt2 {
namespace {

constexpr size_t kContinued = 4; // indent of wrapped lines

constexpr Color kColors[] = {Color::plain, Color::bold, Color::green, Color::yellow}; // by Style

// As many of `parts` as fit, at least the first.
std::string join_while_fits(const std::vector<std::string>& parts, const std::string& separator, size_t columns) {
  std::string out;
  for (const std::string& part : parts) {
    if (!out.empty() && text_width(out) + separator.size() + text_width(part) > columns) break;
    out += (out.empty() ? "" : separator) + part;
  }
  return out;
}

} // namespace

void Console::line(const std::string& text, Style style) { print(wrap_text(text, columns(), kContinued), style); }

void Console::fields(const std::vector<std::string>& fields, Style style) {
  print(join_while_fits(fields, " | ", columns()), style);
}

void Console::command(const std::string& text) { print("  " + text, Style::strong); }

void Console::table(const std::vector<TableSection>& sections) {
  size_t width = 0;
  for (const TableSection& section : sections)
    for (const auto& [name, value] : section.rows) width = std::max(width, name.size());
  for (const TableSection& section : sections) {
    print(section.title, Style::strong);
    for (const auto& [name, value] : section.rows) {
      const std::string row = "  " + name + std::string(width - name.size() + 2, ' ') + value;
      print(wrap_text(row, columns(), width + 4), Style::plain);
    }
  }
}

void Console::progress(double share, const std::vector<std::string>& notes) {
  constexpr size_t kNarrowest = 10, kWidest = 40;
  if (!terminal_) return;
  const size_t room = columns() - 1; // some terminals wrap at the last column
  std::vector<std::string> parts{formatted("%3d%%", static_cast<int>(100 * share))};
  parts.insert(parts.end(), notes.begin(), notes.end());
  const size_t frame = 3; // "[] "
  bar_ = join_while_fits(parts, "  ", room > frame + kNarrowest ? room - frame - kNarrowest : room);
  const size_t left = room > frame + text_width(bar_) ? room - frame - text_width(bar_) : 0;
  if (left >= kNarrowest) {
    const size_t width = std::min(left, kWidest);
    const auto filled = static_cast<size_t>(share * static_cast<double>(width));
    bar_ = "[" + std::string(filled, '=') + std::string(width - filled, ' ') + "] " + bar_;
  }
  draw_bar();
}

void Console::clear_progress() {
  if (bar_.empty()) return;
  out_ << "\r\x1b[K" << std::flush;
  bar_.clear();
}

// A file has no width.
size_t Console::columns() const {
  return terminal_ ? static_cast<size_t>(std::max(20, columns_())) : std::numeric_limits<size_t>::max() / 2;
}

void Console::print(const std::string& text, Style style) {
  if (!bar_.empty()) out_ << "\r\x1b[K";
  out_ << (color_ ? colored(text, kColors[static_cast<int>(style)]) : text) << "\n";
  draw_bar();
  out_.flush(); // for tail -f
}

void Console::draw_bar() {
  if (!bar_.empty()) out_ << "\r" << bar_ << "\x1b[K" << std::flush;
}

} // namespace gpt2
