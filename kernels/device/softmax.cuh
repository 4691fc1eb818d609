// Maximum and sum of exponentials of one row of logits, by one block, in one pass over the row.
#pragma once

#include "kernels/device/ptx.cuh"
#include "kernels/device/vector.cuh"

namespace gpt2 {

constexpr int kSoftmaxThreads = 1024;
constexpr float kLog2e = 1.4426950408889634f;

struct SoftmaxRow {
  float maximum;
  float sum; // of exp(x - maximum) over the real vocabulary
};

// Every thread of the block gets the result; each shared array holds 32 values. The sum is rescaled as the maximum
// grows. kAtOnce vectors of a thread are added while the next ones are on their way.
template <int kThreads = kSoftmaxThreads, int kAtOnce = 1>
__device__ inline SoftmaxRow softmax_row(const bf16* logits, int vocab, int padded_vocab, float* shared_max,
                                         float* shared_sum) {
  const int whole = vocab / kVector; // vectors without padding
  const int vectors = padded_vocab / kVector;
  float maximum = -INFINITY, sum = 0;
  uint4 next[kAtOnce];
  const auto load = [&](int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      next[j] = first + j * kThreads < vectors ? load_raw(logits, first + j * kThreads) : uint4{};
  };
  load(threadIdx.x);
  for (int first = threadIdx.x; first < vectors; first += kAtOnce * kThreads) {
    Float8 x[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) x[j] = unpack(next[j]);
    if (first + kAtOnce * kThreads < vectors) load(first + kAtOnce * kThreads);
    float larger = maximum;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kThreads;
      if (i >= whole) { // vectors that end the vocabulary, or lie beyond the row
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          if (i * kVector + k >= vocab) x[j].v[k] = -INFINITY;
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) larger = fmaxf(larger, x[j].v[k]);
    }
    if (larger == -INFINITY) { // nothing but padding so far, unless it is NaN, which a maximum passes over
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          if (isnan(x[j].v[k])) sum = x[j].v[k];
      }
      continue;
    }
    if (larger > maximum) {
      sum *= fast_exp2((maximum - larger) * kLog2e);
      maximum = larger;
    }
    const float offset = maximum * kLog2e;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum += fast_exp2(fmaf(x[j].v[k], kLog2e, -offset));
    }
  }
  const float row_maximum = block_max(maximum, shared_max);
  sum *= maximum == -INFINITY ? 0.0f : fast_exp2((maximum - row_maximum) * kLog2e);
  return {row_maximum, block_sum(sum, shared_sum)};
}

} // namespace gpt2
