// Maximum and sum of exponentials of one row of logits: one CTA, one pass over the row.
#pragma once

#include "kernels/device/ptx.cuh"
#include "kernels/device/vector.cuh"

namespace gpt2 {

constexpr int kSoftmaxThreads = 1024;

// CTAs per SM. An SM of Ada, GA10x and consumer Blackwell has 1,536 threads, others 2,048.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kSoftmaxBlocks = 1;
#else
constexpr int kSoftmaxBlocks = 2;
#endif
constexpr float kLog2e = 1.4426950408889634f;

struct SoftmaxRow {
  float maximum;
  float sum; // exp(x - maximum) over the vocabulary without padding
};

// exp(x - maximum) = exp2(x * log2(e) - offset). For a maximum of -infinity the offset is 0: exponentials are then 0,
// or NaN.
__device__ inline float softmax_offset(float maximum) { return maximum == -INFINITY ? 0.0f : maximum * kLog2e; }

// Probabilities of 8 columns, from `column` on, to the gradient of their logits.
__device__ inline void subtract_one_hot(Float8& p, int column, int target, int vocab) {
  const int hit = target - column;
  if (hit >= 0 && hit < kVector) { // in one vector of the row
#pragma unroll
    for (int k = 0; k < kVector; ++k) p.v[k] -= k == hit ? 1.0f : 0.0f;
  }
  if (column + kVector > vocab) { // padding columns
#pragma unroll
    for (int k = 0; k < kVector; ++k) p.v[k] = column + k < vocab ? p.v[k] : 0.0f;
  }
}

// Every thread gets the result; each shared array holds 32 values. The sum is rescaled when the maximum grows.
__device__ inline SoftmaxRow softmax_row(const bf16* logits, int vocab, int padded_vocab, float* shared_max,
                                         float* shared_sum) {
  const int whole = vocab / kVector; // vectors with no padding
  const int vectors = padded_vocab / kVector;
  float maximum = -INFINITY, sum = 0;
  uint4 next = static_cast<int>(threadIdx.x) < vectors ? load_raw(logits, threadIdx.x) : uint4{};
  for (int i = threadIdx.x; i < vectors; i += kSoftmaxThreads) {
    Float8 x = unpack(next);
    if (i + kSoftmaxThreads < vectors) next = load_raw(logits, i + kSoftmaxThreads); // prefetch the next vector
    if (i >= whole) {
#pragma unroll
      for (int k = 0; k < kVector; ++k)
        if (i * kVector + k >= vocab) x.v[k] = -INFINITY;
    }
    float larger = maximum;
#pragma unroll
    for (int k = 0; k < kVector; ++k) larger = fmaxf(larger, x.v[k]);
    if (larger == -INFINITY) { // only padding so far, or NaN, which fmaxf ignores
#pragma unroll
      for (int k = 0; k < kVector; ++k)
        if (isnan(x.v[k])) sum = x.v[k];
      continue;
    }
    if (larger > maximum) {
      sum *= fast_exp2((maximum - larger) * kLog2e);
      maximum = larger;
    }
    const float offset = maximum * kLog2e;
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum += fast_exp2(fmaf(x.v[k], kLog2e, -offset));
  }
  const float row_maximum = block_max(maximum, shared_max);
  sum *= maximum == -INFINITY ? 0.0f : fast_exp2((maximum - row_maximum) * kLog2e);
  return {row_maximum, block_sum(sum, shared_sum)};
}

} // namespace gpt2
