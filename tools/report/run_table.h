// Runs as a table of 80 columns.
#pragma once

#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

double last_validation(const RunReader& run); // NaN: none
double typical_speed(const RunReader& run);   // tokens per second, the median over steps; NaN: no step

// In the order of `runs`: what tells them apart, validation loss, its lowest, speed, time, state.
std::vector<std::string> run_table(const std::vector<RunReader>& runs);

// Cells in columns: the first column from the left, the others from the right; the first row is the head.
std::vector<std::string> aligned_columns(const std::vector<std::vector<std::string>>& rows);

} // namespace gpt2
