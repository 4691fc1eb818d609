#include "kernels/embedding.h"

#include <doctest/doctest.h>

#include "tests/kernel_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

struct Shape {
  int B, T, C, vocab;
};

std::vector<int32_t> repeating_tokens(const Shape& s) {
  std::vector<int32_t> tokens(static_cast<size_t>(s.B * s.T));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % static_cast<size_t>(s.vocab));
  return tokens;
}

constexpr Shape kShapes[] = {{1, 1, 1, 1}, {2, 7, 48, 11}, {3, 16, 200, 101}};

} // namespace

TEST_CASE("forward adds the token's row and the position's row, exactly") {
  Cpu cpu;
  for (const Shape& s : kShapes) {
    const auto tokens = repeating_tokens(s);
    const auto wte = random_tensor(s.vocab * s.C, 1), wpe = random_tensor(s.T * s.C, 2);
    std::vector<float> out(static_cast<size_t>(s.B * s.T * s.C), kNan), want(out.size());
    embedding_forward(cpu, {out.data(), tokens.data(), wte.data(), wpe.data(), s.B, s.T, s.C});
    for (int row = 0; row < s.B * s.T; ++row)
      for (int c = 0; c < s.C; ++c)
        want[static_cast<size_t>(row * s.C + c)] =
            wte[static_cast<size_t>(tokens[static_cast<size_t>(row)] * s.C + c)] +
            wpe[static_cast<size_t>(row % s.T * s.C + c)];
    CHECK(same_bits(out, want));
  }
}

TEST_CASE("backward adds every position's gradient to both tables, in token order") {
  Cpu cpu;
  for (const Shape& s : kShapes) {
    const auto tokens = repeating_tokens(s);
    const auto dout = random_tensor(s.B * s.T * s.C, 3);
    auto dwte = random_tensor(s.vocab * s.C, 4), dwpe = random_tensor(s.T * s.C, 5);
    auto want_wte = dwte, want_wpe = dwpe; // float sums in the promised order: the same bits
    embedding_backward(cpu, {dwte.data(), dwpe.data(), dout.data(), tokens.data(), s.B, s.T, s.C, s.vocab});
    for (int row = 0; row < s.B * s.T; ++row) {
      for (int c = 0; c < s.C; ++c) {
        want_wte[static_cast<size_t>(tokens[static_cast<size_t>(row)] * s.C + c)] +=
            dout[static_cast<size_t>(row * s.C + c)];
        want_wpe[static_cast<size_t>(row % s.T * s.C + c)] += dout[static_cast<size_t>(row * s.C + c)];
      }
    }
    CHECK(same_bits(dwte, want_wte));
    CHECK(same_bits(dwpe, want_wpe));
  }
}

TEST_CASE("backward gives the same bits for any number of threads") {
  Cpu cpu;
  const Shape s = {3, 16, 200, 11};
  const auto tokens = repeating_tokens(s);
  const auto dout = random_tensor(s.B * s.T * s.C, 3);
  CHECK(same_for_any_threads([&] {
    std::vector<float> dwte(static_cast<size_t>(s.vocab * s.C)), dwpe(static_cast<size_t>(s.T * s.C));
    embedding_backward(cpu, {dwte.data(), dwpe.data(), dout.data(), tokens.data(), s.B, s.T, s.C, s.vocab});
    dwte.insert(dwte.end(), dwpe.begin(), dwpe.end());
    return dwte;
  }));
}
