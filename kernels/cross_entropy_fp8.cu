// Softmax + cross-entropy in two kernels: row statistics, then the gradient by tiles, in E5M2 both ways round.
#include "kernels/cross_entropy_fp8.h"

#include <cuda_bf16.h>

#include "engine/model/batch.h"
#include "kernels/fp8_tile.cuh"
#include "kernels/profile.h"
#include "kernels/softmax.cuh"

namespace gpt2 {

namespace {

// What the second kernel needs of a row: p = exp2(x * log2(e) - offset).
struct RowStatistics {
  float offset; // (max + log(sum)) * log2(e); infinite for an ignored row, whose gradient is zero
  int target;
};

__global__ void __launch_bounds__(kSoftmaxThreads, 2)
    row_statistics_kernel(CrossEntropyFp8 p, RowStatistics* statistics) {
  __shared__ float shared_max[kWarp], shared_sum[kWarp];
  const int64_t row = blockIdx.x;
  const bf16* const logits = p.logits + row * p.padded_vocab;
  const int target = p.targets[row];
  if (target == kIgnoredTarget) { // the same for the whole block
    if (threadIdx.x == 0) {
      p.losses[row] = 0;
      statistics[row] = {INFINITY, target};
    }
    return;
  }
  const SoftmaxRow softmax = softmax_row(logits, p.vocab, p.padded_vocab, shared_max, shared_sum);
  if (threadIdx.x != 0) return;
  const float log_sum = softmax.maximum + logf(softmax.sum);
  p.losses[row] = log_sum - __bfloat162float(logits[target]);
  statistics[row] = {log_sum * kLog2e, target};
}

struct GradientWork {
  const bf16* logits;
  const RowStatistics* statistics;
  int vectors, vocab;

  static constexpr int kRowsAtOnce = 8;
  using Raw = uint4;
  __device__ Raw load(int64_t row, int col) const { return load_raw_streaming(logits, row * vectors + col / kVector); }
  __device__ void values(const Raw& raw, int64_t row, int col, Float8& main, Float8&) const {
    const RowStatistics of_row = statistics[row];
    main = unpack(raw);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const float probability = fast_exp2(fmaf(main.v[k], kLog2e, -of_row.offset));
      main.v[k] = col + k < vocab ? probability - (col + k == of_row.target ? 1.0f : 0.0f) : 0.0f;
    }
  }
};

} // namespace

void cross_entropy_fp8(Cuda& cuda, const CrossEntropyFp8& p) {
  const Range range(cuda, "cross_entropy_fp8", 6.0 * static_cast<double>(p.rows) * p.padded_vocab);
  auto* const statistics = cuda.scratch<RowStatistics>(static_cast<size_t>(p.rows));
  row_statistics_kernel<<<static_cast<unsigned>(p.rows), kSoftmaxThreads, 0, cuda.stream>>>(p, statistics);
  CUDA_CHECK_LAUNCH("row_statistics");
  launch_fp8_tiles(cuda, GradientWork{p.logits, statistics, p.padded_vocab / kVector, p.vocab},
                   {.main = p.dlogits, .second = {}, .rows = p.rows, .cols = p.padded_vocab}, "cross_entropy_fp8");
}

} // namespace gpt2
