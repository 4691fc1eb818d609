// A run on one screen of a terminal: progress, loss, speed, FP8 health, GPU, recent events.
#pragma once

#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

struct ScreenSize {
  size_t columns = 80, rows = 23; // characters; one row is left for the prompt
  bool color = false;
};

// At most `rows` lines of at most `columns` characters. The loss curve takes the rows that remain.
std::vector<std::string> terminal_screen(const RunReader& run, const ScreenSize& size);

} // namespace gpt2
