// Which FP8 GEMMs have fused epilogues on Hopper (kernels/sm90), by K: for the kernels, and for speed estimates without
// a GPU.
#pragma once

#include <cstdint>

namespace gpt2 {

// Columns of the CTA tile of sm90/gemm_weight_stationary.cuh; 0: not implemented.
constexpr int weight_stationary_block_n(int64_t K) { return K == 768 ? 192 : K == 1024 || K == 1280 ? 128 : 0; }

// K whose weight tile would leave no shared memory for the pipeline: sm90/gemm_pingpong.cuh.
constexpr bool uses_pingpong(int64_t K) { return K == 1600; }

constexpr bool fuses_gelu(int64_t C) { return weight_stationary_block_n(C) != 0 || uses_pingpong(C); }
constexpr bool fuses_softmax(int64_t C, int64_t padded_vocab) {
  const int block_n = weight_stationary_block_n(C);
  return block_n != 0 && padded_vocab % (2 * block_n) == 0;
}

} // namespace gpt2
