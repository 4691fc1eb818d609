#include "engine/base/log.h"

#include <cmath>
#include <cstdio>

#include "engine/base/formatted.h"

namespace gpt2 {

namespace {

// One write per line, so that lines of ranks and threads on one terminal do not mix.
void write_line(std::FILE* stream, std::string line) {
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stream);
  std::fflush(stream);
}

// One decimal of the largest unit with a value of at least 1; thresholds avoid "1000.0" after rounding.
std::string with_unit(double value, const char* const (&units)[5]) {
  if (std::fabs(value) < 999.5) return formatted("%.0f%s", value, units[0]);
  int unit = 0;
  do value /= 1000.0, ++unit;
  while (unit < 4 && std::fabs(value) >= 999.95);
  return formatted("%.1f%s", value, units[unit]);
}

} // namespace

void log_info(const std::string& line) { write_line(stdout, line); }
void log_warn(const std::string& line) { write_line(stderr, "warning: " + line); }

std::string format_count(double count) { return with_unit(count, {"", "K", "M", "B", "T"}); }
std::string format_bytes(double bytes) { return with_unit(bytes, {" B", " KB", " MB", " GB", " TB"}); }

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995) return formatted("%.0fms", seconds * 1e3);
  if (seconds < 59.95) return formatted("%.1fs", seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return formatted("%lldm %02llds", whole / 60, whole % 60);
  if (whole < 86400) return formatted("%lldh %02lldm", whole / 3600, whole / 60 % 60);
  return formatted("%lldd %02lldh", whole / 86400, whole / 3600 % 24);
}

} // namespace gpt2
