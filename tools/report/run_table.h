// A table of runs, 80 columns wide.
#pragma once

#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

double last_validation(const RunReader& run); // NaN: none
double typical_speed(const RunReader& run);   // median tokens per second over steps; NaN: no step

// In the order of `runs`: name, last and lowest validation loss, speed, time, state.
std::vector<std::string> run_table(const std::vector<RunReader>& runs);

// Aligns cells in columns: the first column left, the others right. The first row is the header.
std::vector<std::string> aligned_columns(const std::vector<std::vector<std::string>>& rows);

} // namespace gpt2
