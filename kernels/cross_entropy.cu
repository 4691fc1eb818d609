// Fused softmax + cross-entropy: one block per row of logits, the row read from memory once, its gradient written once.
#include "kernels/cross_entropy.h"

#include <cuda_bf16.h>

#include "engine/model/batch.h"
#include "kernels/cuda_backend.h"
#include "kernels/profile.h"
#include "kernels/softmax.cuh"

namespace gpt2 {

namespace {

// Two passes over the row: maximum and sum together, then the gradient. The second
// pass finds the row in L2: 100 kB a block, 2 blocks on each of 132 multiprocessors are 26 of 50 MB.
__global__ void __launch_bounds__(kSoftmaxThreads, 2) cross_entropy_kernel(CrossEntropy<bf16> p) {
  __shared__ float shared_max[kWarp], shared_sum[kWarp];
  const int64_t row = blockIdx.x;
  bf16* const logits = p.logits + row * p.padded_vocab;
  const int target = p.targets[row];
  const int vectors = p.padded_vocab / kVector;

  if (target == kIgnoredTarget) { // the same for the whole block
    if (threadIdx.x == 0) p.losses[row] = 0;
    if (p.write_gradient)
      for (int i = threadIdx.x; i < vectors; i += kSoftmaxThreads) reinterpret_cast<uint4*>(logits)[i] = uint4{};
    return;
  }

  const auto [maximum, sum] = softmax_row(logits, p.vocab, p.padded_vocab, shared_max, shared_sum);
  if (threadIdx.x == 0) p.losses[row] = maximum + logf(sum) - __bfloat162float(logits[target]);
  if (!p.write_gradient) return;
  __syncthreads(); // the target's logit is read before it is overwritten

  const float inverse = 1.0f / sum, offset = maximum * kLog2e;
  for (int i = threadIdx.x; i < vectors; i += kSoftmaxThreads) {
    Float8 x = load8(logits, i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const float probability = fast_exp2(fmaf(x.v[k], kLog2e, -offset)) * inverse;
      x.v[k] = probability - (i * kVector + k == target ? 1.0f : 0.0f);
    }
    if ((i + 1) * kVector > p.vocab) { // columns that only pad the vocabulary
#pragma unroll
      for (int k = 0; k < kVector; ++k)
        if (i * kVector + k >= p.vocab) x.v[k] = 0;
    }
    store8(logits, i, x);
  }
}

} // namespace

void cross_entropy(Cuda& cuda, const CrossEntropy<bf16>& p) {
  const Range range(cuda, "cross_entropy",
                    (p.write_gradient ? 4.0 : 2.0) * static_cast<double>(p.rows) * p.padded_vocab);
  cross_entropy_kernel<<<static_cast<unsigned>(p.rows), kSoftmaxThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("cross_entropy");
}

} // namespace gpt2
