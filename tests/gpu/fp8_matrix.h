// Matrices in FP8 as the operands of products, and those products in double.
#pragma once

#include <memory>

#include "tests/gpu/fp8_test.h"

namespace gpt2 {

// A (rows, cols) matrix in FP8, both ways round, and the numbers that its codes stand for.
struct Fp8Matrix {
  Fp8Matrix(int64_t rows, int64_t cols, Fp8Format format, uint64_t seed, float deviation)
      : format(format), scale(fp8_max(format) / (5 * deviation)), meta(scale) {
    const std::vector<float> real = random_values(static_cast<size_t>(rows * cols), seed, deviation);
    const Quantized quantized_values = quantized(real, format, scale);
    for (const uint8_t code : quantized_values.codes)
      values.push_back(static_cast<double>(fp8_decode(code, format)) / scale);
    data = std::make_unique<DeviceBuffer<uint8_t>>(quantized_values.codes);
    transposed = std::make_unique<DeviceBuffer<uint8_t>>(transpose(quantized_values.codes, rows, cols));
  }
  Fp8Tensor tensor() { return {data->get(), format, meta}; }
  Fp8Tensor tensor_t() { return {transposed->get(), format, meta}; }

  Fp8Format format;
  float scale;
  MeterBuffer meta;
  std::vector<double> values;
  std::unique_ptr<DeviceBuffer<uint8_t>> data, transposed;
};

// out (m, n) = a (m, k) b (n, k)^T, added to what is there.
inline void multiply_add(std::vector<double>& out, const std::vector<double>& a, const std::vector<double>& b,
                         int64_t m, int64_t n, int64_t k) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t x = 0; x < k; ++x) sum += a[static_cast<size_t>(i * k + x)] * b[static_cast<size_t>(j * k + x)];
      out[static_cast<size_t>(i * n + j)] += sum;
    }
  }
}

inline bool has_fp8(const TestDevice& device) {
  if (device.cuda.device->compute_capability >= 89) return true;
  MESSAGE("skipped: FP8 products need compute capability 8.9");
  return false;
}

} // namespace gpt2
