// Softmax + cross-entropy in two kernels: row statistics, from the logits or from the LM head's parts, then the
// gradient tile by tile in E5M2, row-major and transposed, with stochastic rounding.
#include "kernels/cross_entropy_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/cast_transpose.cuh"
#include "kernels/device/softmax.cuh"
#include "kernels/ignored_target.h"

namespace gpt2 {

namespace {

// Statistics of a row for the gradient: p = exp2(x * log2(e) - offset).
struct RowStatistics {
  float offset; // (max + log(sum)) * log2(e); infinity for an ignored row: zero gradient
  int target;
  uint32_t rounding_key;
  uint32_t unused; // pads to 16 bytes: one load
};

__device__ void write_ignored(const CrossEntropyFp8& p, RowStatistics* statistics, int64_t row) {
  p.losses[row] = 0;
  statistics[row] = {INFINITY, kIgnoredTarget, 0, 0};
}

__device__ void write_row(const CrossEntropyFp8& p, RowStatistics* statistics, int64_t row, const SoftmaxRow& softmax) {
  const int target = p.targets[row];
  const float log_sum = softmax.maximum + logf(softmax.sum);
  p.losses[row] = log_sum - __bfloat162float(p.logits[row * p.padded_vocab + target]);
  statistics[row] = {log_sum * kLog2e, target, rounding_key(*p.first_token + p.first_row + row, target), 0};
}

__global__ void __launch_bounds__(kSoftmaxThreads, kSoftmaxBlocks)
    row_statistics_kernel(CrossEntropyFp8 p, RowStatistics* statistics) {
  __shared__ float shared_max[kWarp], shared_sum[kWarp];
  const int64_t row = blockIdx.x;
  if (p.targets[row] == kIgnoredTarget) { // uniform in the CTA
    if (threadIdx.x == 0) write_ignored(p, statistics, row);
    return;
  }
  const SoftmaxRow softmax =
      softmax_row(p.logits + row * p.padded_vocab, p.vocab, p.padded_vocab, shared_max, shared_sum);
  if (threadIdx.x == 0) write_row(p, statistics, row, softmax);
}

// One warp per row: 262 parts at GPT-2's size, 2 KB; the second read hits L1.
constexpr int kRowsPerBlock = 8;
__global__ void __launch_bounds__(kRowsPerBlock* kWarp)
    merge_parts_kernel(CrossEntropyFp8 p, RowStatistics* statistics) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarp;
  if (p.targets[row] == kIgnoredTarget) {
    if (lane == 0) write_ignored(p, statistics, row);
    return;
  }
  const SoftmaxPart* const parts = p.parts + row * p.parts_per_row;
  float maximum = -INFINITY, sum = 0;
  for (int i = lane; i < p.parts_per_row; i += kWarp) maximum = fmaxf(maximum, parts[i].maximum);
  maximum = warp_max(maximum);
  const float offset = softmax_offset(maximum);
  for (int i = lane; i < p.parts_per_row; i += kWarp) {
    const SoftmaxPart part = parts[i];
    sum += part.sum * fast_exp2(fmaf(part.maximum, kLog2e, -offset));
  }
  sum = warp_sum(sum);
  if (lane == 0) write_row(p, statistics, row, {maximum, sum});
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
    subtract_one_hot(main, col, of_row.target, vocab);
  }
  __device__ uint2 encode(const Float8& main, float scale, int64_t row, int col) const {
    const RowStatistics of_row = statistics[row];
    Float8 scaled;
#pragma unroll
    for (int k = 0; k < kVector; ++k) scaled.v[k] = main.v[k] * scale;
    const bool nan = of_row.offset != of_row.offset; // a NaN row stays NaN: no dither
    return e5m2_pack_stochastic(scaled, nan ? RoundingBytes{} : rounding_bytes(of_row.rounding_key, col));
  }
};

} // namespace

void cross_entropy_fp8(CudaStream& cuda, const CrossEntropyFp8& p) {
  const NvtxRange range(cuda, "cross_entropy_fp8",
                        (p.parts ? 4.0 : 6.0) * static_cast<double>(p.rows) * p.padded_vocab);
  const Requirements require("cross_entropy_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.padded_vocab % 16 == 0, "padded_vocab is a multiple of 16");
  require(p.vocab <= p.padded_vocab, "vocab is at most padded_vocab");
  require(p.dlogits.format == Fp8Format::e5m2, "the gradient is E5M2");
  auto* const statistics = cuda.scratch<RowStatistics>(static_cast<size_t>(p.rows));
  const auto rows = static_cast<unsigned>(p.rows);
  if (p.parts)
    merge_parts_kernel<<<rows / kRowsPerBlock, kRowsPerBlock * kWarp, 0, cuda.stream>>>(p, statistics);
  else
    row_statistics_kernel<<<rows, kSoftmaxThreads, 0, cuda.stream>>>(p, statistics);
  CUDA_CHECK_LAUNCH("cross_entropy_fp8_row_statistics");
  cast_transpose(cuda, GradientWork{p.logits, statistics, p.vocab},
                 {.main = p.dlogits, .second = {}, .rows = p.rows, .cols = p.padded_vocab}, "cross_entropy_fp8");
}

} // namespace gpt2
