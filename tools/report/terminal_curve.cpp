#include "tools/report/terminal_curve.h"

#include <algorithm>
#include <cmath>

#include "engine/base/formatted.h"
#include "engine/system/terminal.h"

namespace gpt2 {
namespace {

constexpr size_t kLabelColumns = 7, kRowsOfLabel = 4;

std::string utf8(char32_t c) { // three bytes: U+0800 to U+FFFF
  return {static_cast<char>(0xe0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3f)),
          static_cast<char>(0x80 | (c & 0x3f))};
}

} // namespace

std::vector<double> binned(const std::vector<double>& values, size_t count, Bin bin) {
  if (values.size() <= count) return values;
  std::vector<double> out;
  for (size_t i = 0; i < count; ++i) {
    double sum = 0, known = 0, high = std::nan("");
    for (size_t k = i * values.size() / count; k < (i + 1) * values.size() / count; ++k) {
      if (!std::isfinite(values[k])) continue;
      sum += values[k];
      ++known;
      high = std::fmax(high, values[k]);
    }
    out.push_back(bin == Bin::max ? high : known > 0 ? sum / known : std::nan(""));
  }
  return out;
}

std::vector<std::string> braille_curve(const std::vector<double>& values, double low, double high, size_t columns,
                                       size_t rows) {
  static constexpr int kDots[4][2] = {
      {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}; // rows from the top; left and right
  std::vector<std::vector<int>> cells(rows, std::vector<int>(columns, 0));
  const size_t dots = 2 * columns;
  const int lowest = static_cast<int>(4 * rows) - 1;
  int before = -1;
  for (size_t x = 0; x < dots && !values.empty(); ++x) {
    if (values.size() < dots && x * values.size() / dots >= values.size()) break;
    const double value = values[values.size() < dots ? x * values.size() / dots : x];
    if (!std::isfinite(value)) {
      before = -1;
      continue;
    }
    const double share = std::clamp((high - value) / (high - low), 0.0, 1.0);
    const int y = static_cast<int>(std::lround(share * lowest));
    const int from = before < 0 ? y : std::min(y, before < y ? before + 1 : before - 1); // connects to the previous dot
    const int to = before < 0 ? y : std::max(y, before > y ? before - 1 : before + 1);
    for (int dot = before == y ? y : std::max(from, 0); dot <= (before == y ? y : std::min(to, lowest)); ++dot)
      cells[static_cast<size_t>(dot / 4)][x / 2] |= kDots[dot % 4][x % 2];
    before = y;
  }
  std::vector<std::string> lines(rows);
  for (size_t row = 0; row < rows; ++row)
    for (const int cell : cells[row]) lines[row] += cell == 0 ? " " : utf8(static_cast<char32_t>(0x2800 + cell));
  return lines;
}

std::string sparkline(const std::vector<double>& values) {
  double high = 0;
  for (const double value : values)
    if (std::isfinite(value)) high = std::max(high, value);
  std::string out;
  for (const double value : values) {
    const double share = high > 0 ? std::clamp(value / high, 0.0, 1.0) : 0;
    out +=
        std::isfinite(value) ? utf8(static_cast<char32_t>(0x2581 + std::lround(share * 7))) : " "; // U+2581 to U+2588
  }
  return out;
}

std::vector<std::string> labelled_curve(const std::vector<double>& values, double low, double high, size_t columns,
                                        size_t rows, const char* format) {
  const size_t width = columns - kLabelColumns - 2;
  std::vector<std::string> lines = braille_curve(binned(values, 2 * width), low, high, width, rows);
  for (size_t row = 0; row < rows; ++row) {
    const double value = high - (high - low) * static_cast<double>(row) / static_cast<double>(rows - 1);
    const std::string label = row % kRowsOfLabel == 0 ? formatted(format, value) : "";
    lines[row].erase(lines[row].find_last_not_of(' ') + 1);
    lines[row] = std::string(kLabelColumns - std::min(kLabelColumns, label.size()), ' ') + label + " │" + lines[row];
  }
  return lines;
}

std::string labelled_axis(const std::string& first, const std::string& last, size_t columns) {
  const size_t used = kLabelColumns + 2 + text_width(first) + text_width(last);
  return std::string(kLabelColumns + 2, ' ') + first + std::string(columns > used ? columns - used : 1, ' ') + last;
}

} // namespace gpt2
