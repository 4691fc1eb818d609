// Softmax + cross-entropy in two kernels: row statistics, then the gradient by tiles, in E5M2 both ways round,
// rounded stochastically.
#include "kernels/cross_entropy_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/fp8_tile.cuh"
#include "kernels/device/softmax.cuh"
#include "kernels/ignored_target.h"

namespace gpt2 {

namespace {

// What the second kernel needs of a row: p = exp2(x * log2(e) - offset).
struct RowStatistics {
  float offset; // (max + log(sum)) * log2(e); infinite for an ignored row, whose gradient is zero
  int target;
  uint32_t rounding_key;
  uint32_t unused; // 16 bytes: one load
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
      statistics[row] = {INFINITY, target, 0, 0};
    }
    return;
  }
  const SoftmaxRow softmax = softmax_row(logits, p.vocab, p.padded_vocab, shared_max, shared_sum);
  if (threadIdx.x != 0) return;
  const float log_sum = softmax.maximum + logf(softmax.sum);
  p.losses[row] = log_sum - __bfloat162float(logits[target]);
  statistics[row] = {log_sum * kLog2e, target, rounding_key(*p.first_token + p.first_row + row, target), 0};
}

struct GradientWork {
  const bf16* logits;
  const RowStatistics* statistics;
  int vocab;

  static constexpr int kRowsAtOnce = 4;
  static constexpr int kBlocks = 8;
  using Raw = uint4;
  __device__ Raw load(int64_t vector) const { return load_raw_streaming(logits, vector); }
  __device__ void values(const Raw& raw, int64_t row, int col, Float8& main, Float8&) const {
    const RowStatistics of_row = statistics[row];
    main = unpack(raw);
#pragma unroll
    for (int k = 0; k < kVector; ++k) main.v[k] = fast_exp2(fmaf(main.v[k], kLog2e, -of_row.offset));
    const int hit = of_row.target - col;
    if (hit >= 0 && hit < kVector) { // one vector in 6,288
#pragma unroll
      for (int k = 0; k < kVector; ++k) main.v[k] -= k == hit ? 1.0f : 0.0f;
    }
    if (col + kVector > vocab) { // columns that only pad the vocabulary
#pragma unroll
      for (int k = 0; k < kVector; ++k) main.v[k] = col + k < vocab ? main.v[k] : 0.0f;
    }
  }
  __device__ uint2 encode(const Float8& main, float scale, int64_t row, int col) const {
    const RowStatistics of_row = statistics[row];
    Float8 scaled;
#pragma unroll
    for (int k = 0; k < kVector; ++k) scaled.v[k] = main.v[k] * scale;
    const bool nan = of_row.offset != of_row.offset; // the codes of such a row are NaN, and shall stay it
    return e5m2_pack_stochastic(scaled, nan ? RoundingBytes{} : rounding_bytes(of_row.rounding_key, col));
  }
};

} // namespace

void cross_entropy_fp8(Cuda& cuda, const CrossEntropyFp8& p) {
  const Range range(cuda, "cross_entropy_fp8", 6.0 * static_cast<double>(p.rows) * p.padded_vocab);
  const Requirements require("cross_entropy_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.padded_vocab % 16 == 0, "padded_vocab is a multiple of 16");
  require(p.vocab <= p.padded_vocab, "vocab is at most padded_vocab");
  require(p.dlogits.format == Fp8Format::e5m2, "the gradient is E5M2");
  auto* const statistics = cuda.scratch<RowStatistics>(static_cast<size_t>(p.rows));
  row_statistics_kernel<<<static_cast<unsigned>(p.rows), kSoftmaxThreads, 0, cuda.stream>>>(p, statistics);
  CUDA_CHECK_LAUNCH("row_statistics");
  launch_fp8_tiles(cuda, GradientWork{p.logits, statistics, p.vocab},
                   {.main = p.dlogits, .second = {}, .rows = p.rows, .cols = p.padded_vocab}, "cross_entropy_fp8");
}

} // namespace gpt2
