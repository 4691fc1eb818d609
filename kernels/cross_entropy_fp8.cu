// Softmax + cross-entropy: row statistics, then the gradient by tiles, in E5M2 both ways round, rounded stochastically.
// The second reading of the logits finds them in L2: 4 of the 6 bytes per logit come from memory or go there.
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
struct alignas(16) RowStatistics {
  float offset; // (max + log(sum)) * log2(e); infinite for an ignored row, whose gradient is zero
  int target;
  uint32_t rounding_key;
  uint32_t unused; // 16 bytes: one load
};

// One row by a block of kTileThreads threads.
__device__ void row_statistics(const CrossEntropyFp8& p, RowStatistics* statistics, int64_t row) {
  __shared__ float shared_max[kWarp], shared_sum[kWarp];
  const bf16* const logits = p.logits + row * p.padded_vocab;
  const int target = p.targets[row];
  if (target == kIgnoredTarget) { // the same for the whole block
    if (threadIdx.x == 0) {
      p.losses[row] = 0;
      statistics[row] = {INFINITY, target, 0, 0};
    }
    return;
  }
  const SoftmaxRow softmax = softmax_row<kTileThreads, 4>(logits, p.vocab, p.padded_vocab, shared_max, shared_sum);
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

// A chunk of logits is 412 MB, L2 holds 50. So the two readings take turns by groups of 128 rows, 13 MB: statistics of
// groups 0 and 1, gradient of group 0, statistics of 2, gradient of 1, and so on. Blocks take the pieces of that in
// order; one that comes to a gradient before its group's statistics are complete waits for those who have them.
constexpr int kGroupRows = kTileRows;
static_assert(kGroupRows == 128);

struct Progress {
  unsigned next;   // piece to be taken
  unsigned done[]; // rows of each group whose statistics are written
};

struct Piece {
  int group, index;
  bool gradient; // of a tile of columns; else statistics of a row
};

struct Pieces {
  int groups, col_tiles;

  __device__ int count() const { return groups * (kGroupRows + col_tiles); }

  // S0 | S1 G0 | S2 G1 | ... | S(n-1) G(n-2) | G(n-1)
  __device__ Piece at(int number) const {
    if (number < kGroupRows) return {0, number, false};
    const int pair = (number - kGroupRows) / (kGroupRows + col_tiles);
    const int place = (number - kGroupRows) % (kGroupRows + col_tiles);
    if (pair + 1 == groups) return {pair, place, true};
    return place < kGroupRows ? Piece{pair + 1, place, false} : Piece{pair, place - kGroupRows, true};
  }
};

__global__ void __launch_bounds__(kTileThreads, GradientWork::kBlocks)
    cross_entropy_fp8_kernel(CrossEntropyFp8 p, RowStatistics* statistics, Progress* progress) {
  __shared__ unsigned taken;
  const Pieces pieces{static_cast<int>(ceil_div(p.rows, kGroupRows)),
                      static_cast<int>(ceil_div(p.padded_vocab, kTileCols))};
  const GradientWork work{p.logits, statistics, p.vocab};
  const TileOutputs outputs{p.dlogits, {}, nullptr};
  const auto count = static_cast<unsigned>(pieces.count());
  if (threadIdx.x == 0) taken = atomicAdd(&progress->next, 1);
  __syncthreads();
  unsigned number = taken;
  while (number < count) {
    __syncthreads();
    unsigned next = 0;
    if (threadIdx.x == 0) next = atomicAdd(&progress->next, 1); // on its way while this one is worked on
    const Piece piece = pieces.at(static_cast<int>(number));
    const int64_t row0 = static_cast<int64_t>(piece.group) * kGroupRows;
    if (piece.gradient) {
      const auto rows = static_cast<unsigned>(min(int64_t{kGroupRows}, p.rows - row0));
      if (threadIdx.x == 0) {
        while (load_acquire(&progress->done[piece.group]) < rows) __nanosleep(50);
      }
      __syncthreads();
      fp8_tile<GradientWork, false>(work, outputs, p.rows, p.padded_vocab, piece.group, piece.index);
    } else if (row0 + piece.index < p.rows) {
      row_statistics(p, statistics, row0 + piece.index);
      if (threadIdx.x == 0) add_release(&progress->done[piece.group], 1u);
    }
    if (threadIdx.x == 0) taken = next;
    __syncthreads();
    number = taken;
  }
}

} // namespace

void cross_entropy_fp8(Cuda& cuda, const CrossEntropyFp8& p) {
  const Range range(cuda, "cross_entropy_fp8", 4.0 * static_cast<double>(p.rows) * p.padded_vocab);
  const Requirements require("cross_entropy_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.padded_vocab % 16 == 0, "padded_vocab is a multiple of 16");
  require(p.vocab <= p.padded_vocab, "vocab is at most padded_vocab");
  require(p.dlogits.format == Fp8Format::e5m2, "the gradient is E5M2");
  // Statistics, and behind them what has been done.
  auto* const statistics = cuda.scratch<RowStatistics>(static_cast<size_t>(p.rows) + 1 + p.rows / kGroupRows);
  const int64_t groups = ceil_div(p.rows, kGroupRows);
  auto* const progress = reinterpret_cast<Progress*>(statistics + p.rows);
  CUDA_CHECK(cudaMemsetAsync(progress, 0, (1 + static_cast<size_t>(groups)) * sizeof(unsigned), cuda.stream));
  const auto blocks = static_cast<unsigned>(cuda.device->multiprocessors * GradientWork::kBlocks);
  cross_entropy_fp8_kernel<<<blocks, kTileThreads, 0, cuda.stream>>>(p, statistics, progress);
  CUDA_CHECK_LAUNCH("cross_entropy_fp8");
}

} // namespace gpt2
