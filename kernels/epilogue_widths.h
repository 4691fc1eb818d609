// Which FP8 products of a Hopper GPU have epilogues of our own (kernels/sm90), by their terms: for the kernels, and for
// who predicts a speed where there is no GPU.
#pragma once

#include <cstdint>

namespace gpt2 {

// Rows of the weight that a block of sm90/stationary_product.cuh keeps; 0: there is no such product.
constexpr int stationary_panel(int64_t K) { return K == 768 ? 192 : K == 1024 || K == 1280 ? 128 : 0; }

// Where a panel would leave no room for a ring beside it: sm90/tiled_product.cuh.
constexpr bool tiled_terms(int64_t K) { return K == 1600; }

constexpr bool gelu_is_an_epilogue(int64_t C) { return stationary_panel(C) != 0 || tiled_terms(C); }
constexpr bool softmax_is_an_epilogue(int64_t C, int64_t padded_vocab) {
  const int panel = stationary_panel(C);
  return panel != 0 && padded_vocab % (2 * panel) == 0;
}

} // namespace gpt2
