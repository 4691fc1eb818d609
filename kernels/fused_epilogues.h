// Which FP8 products of a Hopper GPU have epilogues of our own (kernels/sm90), by their terms: for the kernels, and for
// who predicts a speed where there is no GPU.
#pragma once

#include <cstdint>

namespace gpt2 {

// Rows of the weight that a block of sm90/gemm_weight_stationary.cuh keeps; 0: there is no such product.
constexpr int weight_stationary_block_n(int64_t K) { return K == 768 ? 192 : K == 1024 || K == 1280 ? 128 : 0; }

// Where a panel would leave no room for a ring beside it: sm90/gemm_pingpong.cuh.
constexpr bool uses_pingpong(int64_t K) { return K == 1600; }

constexpr bool fuses_gelu(int64_t C) { return weight_stationary_block_n(C) != 0 || uses_pingpong(C); }
constexpr bool fuses_softmax(int64_t C, int64_t padded_vocab) {
  const int panel = weight_stationary_block_n(C);
  return panel != 0 && padded_vocab % (2 * panel) == 0;
}

} // namespace gpt2
