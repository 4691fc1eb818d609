// A run on one screen of a terminal: how far, how well, how fast, how healthy, how long still.
#pragma once

#include <string>
#include <vector>

#include "engine/report/run_metrics.h"

namespace gpt2 {

// Dots of Braille, 2 x 4 a character, of `values` from left to right: `columns` by `rows` characters, values beyond low
// and high at the edge. NaN leaves a gap.
std::vector<std::string> braille_curve(const std::vector<double>& values, double low, double high, size_t columns,
                                       size_t rows);

// One character a value, from the lowest block to the full one; 0 is the ground.
std::string sparkline(const std::vector<double>& values);

// At most `count` numbers: the mean of each stretch, or its greatest.
std::vector<double> stretched(const std::vector<double>& values, size_t count, bool greatest = false);

// Lines of at most `columns` characters, 24 of them or fewer.
std::vector<std::string> terminal_screen(const RunReader& run, size_t columns);

} // namespace gpt2
