// A run on one screen of a terminal: how far, how well, how fast, how healthy, how long still.
#pragma once

#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

// Lines of at most `columns` characters, 24 of them or fewer.
std::vector<std::string> terminal_screen(const RunReader& run, size_t columns);

} // namespace gpt2
