// Matrices of known singular vectors and values. An odd polynomial of such a matrix keeps the vectors, so that its
// singular values can be read off without a decomposition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/base/rng.h"

namespace gpt2::testing {

struct KnownMatrix {
  int64_t rows, cols;
  std::vector<double> left, right; // (side, rows), (side, cols): orthonormal
  std::vector<double> values;      // (side), of a matrix whose Frobenius norm is 1

  int64_t side() const { return std::min(rows, cols); }

  std::vector<float> matrix() const {
    std::vector<float> out(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < side(); ++i) sum += values[at(i)] * left[at(i * rows + r)] * right[at(i * cols + c)];
        out[at(r * cols + c)] = static_cast<float>(sum);
      }
    }
    return out;
  }

  // left[i]^T x right[i]
  double value_in(const float* x, int64_t i) const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) sum += left[at(i * rows + r)] * x[r * cols + c] * right[at(i * cols + c)];
    }
    return sum;
  }

 private:
  static size_t at(int64_t index) { return static_cast<size_t>(index); }
};

inline std::vector<double> orthonormal(int64_t count, int64_t length, uint64_t seed) {
  const Rng rng(seed);
  std::vector<double> all(static_cast<size_t>(count * length));
  for (size_t i = 0; i < all.size(); ++i) all[i] = rng.normal(i);
  for (int64_t i = 0; i < count; ++i) {
    double* const row = all.data() + i * length;
    for (int64_t j = 0; j <= i; ++j) { // the last pass, with itself, normalizes
      const double* const other = all.data() + j * length;
      double dot = 0;
      for (int64_t k = 0; k < length; ++k) dot += row[k] * other[k];
      const double norm = std::sqrt(dot);
      for (int64_t k = 0; k < length; ++k) row[k] = i == j ? row[k] / norm : row[k] - dot * other[k];
    }
  }
  return all;
}

// Singular values that fall evenly over `decades`.
inline KnownMatrix known_matrix(int64_t rows, int64_t cols, double decades, uint64_t seed) {
  KnownMatrix known{rows, cols, {}, {}, {}};
  known.left = orthonormal(known.side(), rows, seed);
  known.right = orthonormal(known.side(), cols, seed + 1);
  double square = 0;
  for (int64_t i = 0; i < known.side(); ++i) {
    known.values.push_back(std::pow(10, -decades * static_cast<double>(i) / static_cast<double>(known.side() - 1)));
    square += known.values.back() * known.values.back();
  }
  for (double& value : known.values) value /= std::sqrt(square);
  return known;
}

} // namespace gpt2::testing
