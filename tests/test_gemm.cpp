#include "kernels/gemm.h"

#include <doctest/doctest.h>

#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

struct Shape {
  int rows, C, OC;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {7, 48, 101}, {130, 33, 65}, {64, 256, 192}};

size_t at(int row, int col, int cols) {
  return static_cast<size_t>(row) * static_cast<size_t>(cols) + static_cast<size_t>(col);
}

// sum over k of a(i, k) b(j, k), for any two element functions
template <class A, class B>
std::vector<double> products(int rows, int cols, int inner, A a, B b) {
  std::vector<double> out(static_cast<size_t>(rows) * static_cast<size_t>(cols));
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < cols; ++j)
      for (int k = 0; k < inner; ++k)
        out[at(i, j, cols)] += static_cast<double>(a(i, k)) * static_cast<double>(b(j, k));
  return out;
}

} // namespace

// Tolerances are relative to the largest element; FP32 sums of up to 256 terms come within 5e-7.

TEST_CASE("forward: in weight^T, with and without bias, overwrites out") {
  Cpu cpu;
  for (const auto& [rows, C, OC] : kShapes) {
    const auto in = random_tensor(rows * C, 1), weight = random_tensor(OC * C, 2), bias = random_tensor(OC, 3, 5.0f);
    auto want = products(
        rows, OC, C, [&](int i, int k) { return in[at(i, k, C)]; }, [&](int j, int k) { return weight[at(j, k, C)]; });
    std::vector<float> out(want.size(), kNan);
    gemm_forward(cpu, {out.data(), in.data(), weight.data(), nullptr, rows, C, OC});
    CHECK(max_error(out, want) < 1e-6);

    std::fill(out.begin(), out.end(), kNan);
    gemm_forward(cpu, {out.data(), in.data(), weight.data(), bias.data(), rows, C, OC});
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < OC; ++j) want[at(i, j, OC)] += static_cast<double>(bias[static_cast<size_t>(j)]);
    CHECK(max_error(out, want) < 1e-6);
  }
}

TEST_CASE("backward input: dout weight, overwrites din") {
  Cpu cpu;
  for (const auto& [rows, C, OC] : kShapes) {
    const auto dout = random_tensor(rows * OC, 1), weight = random_tensor(OC * C, 2);
    const auto want = products(
        rows, C, OC, [&](int i, int k) { return dout[at(i, k, OC)]; },
        [&](int j, int k) { return weight[at(k, j, C)]; });
    std::vector<float> din(want.size(), kNan);
    gemm_backward_input(cpu, {din.data(), dout.data(), weight.data(), rows, C, OC});
    CHECK(max_error(din, want) < 1e-6);
  }
}

TEST_CASE("backward weight: adds dout^T in") {
  Cpu cpu;
  for (const auto& [rows, C, OC] : kShapes) {
    const auto dout = random_tensor(rows * OC, 1), in = random_tensor(rows * C, 2);
    auto dweight = random_tensor(OC * C, 3, 10.0f);
    auto want = products(
        OC, C, rows, [&](int i, int k) { return dout[at(k, i, OC)]; }, [&](int j, int k) { return in[at(k, j, C)]; });
    for (size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(dweight[i]);
    gemm_backward_weight(cpu, {dweight.data(), dout.data(), in.data(), rows, C, OC});
    CHECK(max_error(dweight, want) < 1e-6);
  }
}
