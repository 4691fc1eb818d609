#include "kernels/bias.h"

#include <doctest/doctest.h>

#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

TEST_CASE("adds column sums, the same bits for any number of threads") {
  Cpu cpu;
  for (const auto& [rows, cols] : {std::pair{1, 1}, std::pair{5, 48}, std::pair{7, 67}, std::pair{33, 192}}) {
    const auto dout = random_tensor(rows * cols, 1), start = random_tensor(cols, 2, 10.0f);
    auto dbias = start;
    auto want = as_doubles(start);
    for (size_t i = 0; i < dout.size(); ++i) want[i % static_cast<size_t>(cols)] += static_cast<double>(dout[i]);
    bias_backward(cpu, {dbias.data(), dout.data(), rows, cols});
    CHECK(max_error(dbias, want) < 1e-7);
    CHECK(same_for_any_threads([&, rows = rows, cols = cols] {
      auto sums = start;
      bias_backward(cpu, {sums.data(), dout.data(), rows, cols});
      return sums;
    }));
  }
}
