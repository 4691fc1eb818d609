// Fused softmax + cross-entropy: one block per row of logits, the row read from memory once, its gradient written once.
#include "kernels/cross_entropy.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/softmax.cuh"
#include "kernels/ignored_target.h"

namespace gpt2 {

namespace {

// Two passes over the row: maximum and sum, then the gradient. In between the row stays in shared memory, 98 KiB for
// GPT-2's vocabulary, two rows per SM; a longer row is read again, usually from L2.
template <bool kInShared>
__global__ void __launch_bounds__(kSoftmaxThreads, kSoftmaxBlocks) cross_entropy_kernel(CrossEntropy<bf16> p) {
  extern __shared__ uint4 row_cache[]; // kInShared: (padded_vocab / 8)
  __shared__ float shared_max[kWarp], shared_sum[kWarp];
  const int64_t row = blockIdx.x;
  bf16* const logits = p.logits + row * p.padded_vocab;
  const int target = p.targets[row];
  const int vectors = p.padded_vocab / kVector;

  if (target == kIgnoredTarget) { // uniform in the CTA
    if (threadIdx.x == 0) p.losses[row] = 0;
    if (p.write_gradient)
      for (int i = threadIdx.x; i < vectors; i += kSoftmaxThreads) reinterpret_cast<uint4*>(logits)[i] = uint4{};
    return;
  }

  const bf16* source = logits;
  if constexpr (kInShared) {
    for (int i = threadIdx.x; i < vectors; i += kSoftmaxThreads)
      cp_async_16(row_cache + i, logits + static_cast<int64_t>(i) * kVector, true);
    cp_async_commit();
    cp_async_wait<0>(); // a thread reads only what it copied itself
    source = reinterpret_cast<const bf16*>(row_cache);
  }
  const float target_logit = threadIdx.x == 0 ? __bfloat162float(logits[target]) : 0.0f; // before it is overwritten
  const auto [maximum, sum] = softmax_row(source, p.vocab, p.padded_vocab, shared_max, shared_sum);
  if (threadIdx.x == 0) p.losses[row] = maximum + logf(sum) - target_logit;
  if (!p.write_gradient) return;

  const float inverse = 1.0f / sum, offset = maximum * kLog2e;
  for (int i = threadIdx.x; i < vectors; i += kSoftmaxThreads) {
    Float8 x = load8(source, i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) x.v[k] = fast_exp2(fmaf(x.v[k], kLog2e, -offset)) * inverse;
    subtract_one_hot(x, i * kVector, target, p.vocab);
    store8(logits, i, x);
  }
}

} // namespace

void cross_entropy(CudaStream& cuda, const CrossEntropy<bf16>& p) {
  const NvtxRange range(cuda, "cross_entropy",
                        (p.write_gradient ? 4.0 : 2.0) * static_cast<double>(p.rows) * p.padded_vocab);
  const Requirements require("cross_entropy");
  require(p.padded_vocab % kVector == 0, "padded_vocab is a multiple of 8");
  require(p.vocab <= p.padded_vocab, "vocab is at most padded_vocab");
  constexpr int kOtherShared = 1280; // per CTA, ours and CUDA's
  const size_t shared = static_cast<size_t>(p.padded_vocab) * sizeof(bf16);
  if (2 * (shared + kOtherShared) <=
      static_cast<size_t>(cuda.device->shared_memory_per_multiprocessor)) { // two CTAs per SM
    allow_shared_memory(*cuda.device, cross_entropy_kernel<true>, shared);
    cross_entropy_kernel<true><<<static_cast<unsigned>(p.rows), kSoftmaxThreads, shared, cuda.stream>>>(p);
  } else {
    cross_entropy_kernel<false><<<static_cast<unsigned>(p.rows), kSoftmaxThreads, 0, cuda.stream>>>(p);
  }
  CUDA_CHECK_LAUNCH("cross_entropy");
}

} // namespace gpt2
