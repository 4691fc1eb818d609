// Curves as text.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// `values` from left to right in Braille dots, 2 x 4 per character: `columns` by `rows` characters. Values outside low
// and high are clamped; NaN leaves a gap.
std::vector<std::string> braille_curve(const std::vector<double>& values, double low, double high, size_t columns,
                                       size_t rows);

// One block character per value, from zero to the largest value.
std::string sparkline(const std::vector<double>& values);

// Reduces `values` to at most `count` numbers: the mean or the maximum of each bin.
enum class Bin { mean, max };
std::vector<double> binned(const std::vector<double>& values, size_t count, Bin bin = Bin::mean);

// A Braille curve with a y axis from `high` to `low`, `columns` characters wide including the labels; `format` yields
// at most seven characters.
std::vector<std::string> labelled_curve(const std::vector<double>& values, double low, double high, size_t columns,
                                        size_t rows, const char* format);

// The x axis below such a curve: its first and last value.
std::string labelled_axis(const std::string& first, const std::string& last, size_t columns);

} // namespace gpt2
