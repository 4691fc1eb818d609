// Curves of characters.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// Dots of Braille, 2 x 4 a character, of `values` from left to right: `columns` by `rows` characters, values beyond low
// and high at the edge. NaN leaves a gap.
std::vector<std::string> braille_curve(const std::vector<double>& values, double low, double high, size_t columns,
                                       size_t rows);

// One character a value, from the lowest block to the full one; 0 is the ground.
std::string sparkline(const std::vector<double>& values);

// At most `count` numbers: the mean of each stretch, or its greatest.
std::vector<double> stretched(const std::vector<double>& values, size_t count, bool greatest = false);

// Rows of a Braille curve with numbers from `high` to `low` on its left, `columns` characters wide in all; `format`
// makes a number of at most seven characters.
std::vector<std::string> labelled_curve(const std::vector<double>& values, double low, double high, size_t columns,
                                        size_t rows, const char* format);

// Below it: the first and the last value of the x axis.
std::string labelled_axis(const std::string& first, const std::string& last, size_t columns);

} // namespace gpt2
