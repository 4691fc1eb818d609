#include "engine/train/console.h"

#include <algorithm>
#include <cstdio>
#include <ostream>

#include "engine/base/log.h"

namespace gpt2 {

std::string progress_bar(int64_t step, int64_t steps, double eta_seconds) {
  constexpr int kWidth = 40;
  const double share = steps > 0 ? std::min(1.0, static_cast<double>(step) / static_cast<double>(steps)) : 1.0;
  const int filled = static_cast<int>(share * kWidth);
  char text[160];
  std::snprintf(text, sizeof text, "[%s%s] %3d%%  step %lld/%lld  eta %s", std::string(filled, '=').c_str(),
                std::string(kWidth - filled, ' ').c_str(), static_cast<int>(share * 100), static_cast<long long>(step),
                static_cast<long long>(steps), format_duration(eta_seconds).c_str());
  return text;
}

std::string format_table(const TableRows& rows) {
  size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : rows) out += "  " + name + std::string(width - name.size() + 2, ' ') + value + "\n";
  if (!out.empty()) out.pop_back();
  return out;
}

void Console::line(const std::string& text) {
  const std::string bar = bar_;
  clear_progress();
  out_ << text << "\n";
  progress(bar);
  out_.flush(); // a file is followed with tail -f
}

void Console::progress(const std::string& bar_text) {
  if (!terminal_ || bar_text.empty()) return;
  bar_ = bar_text;
  out_ << "\r" << bar_ << "\x1b[K" << std::flush;
}

void Console::clear_progress() {
  if (bar_.empty()) return;
  out_ << "\r\x1b[K" << std::flush;
  bar_.clear();
}

} // namespace gpt2
