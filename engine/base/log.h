// Log lines, and readable numbers.
#pragma once

#include <cstdint>
#include <string>

namespace gpt2 {

void log_info(const std::string& line); // stdout
void log_warn(const std::string& line); // stderr, after "warning: "

std::string format_count(double count);      // 950, 50.3K, 124.5M, 9.9B
std::string format_bytes(double bytes);      // 512 B, 1.0 KB, 27.9 GB; powers of 1000
std::string format_duration(double seconds); // 850ms, 4.2s, 3m 05s, 1h 23m, 2d 04h

} // namespace gpt2
