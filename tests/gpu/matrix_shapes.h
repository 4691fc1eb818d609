// Matrices for elementwise operations and column sums: GPT-2's widths, and ragged ones.
#pragma once

#include <cstdint>
#include <string>

namespace gpt2 {

struct Shape {
  int64_t rows;
  int cols;
  int64_t elements() const { return rows * cols; }
};

inline const Shape kShapes[] = {{1, 64},    {7, 3072},   {130, 4096}, {1000, 768}, {33, 5120},
                                {130, 200}, {130, 6400}, {5, 8},      {1000, 72},  {1000, 2304}};

inline std::string name_of(const Shape& s) {
  return "rows=" + std::to_string(s.rows) + " cols=" + std::to_string(s.cols);
}

inline size_t size_of(const Shape& s) { return static_cast<size_t>(s.rows * s.cols); }

} // namespace gpt2
