// LayerNorm forward with FP8 output, in one pass over memory: N warps per row, the next rows in flight. The backward
// pass is in layernorm_backward.cu.
#include "kernels/layernorm_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/fp8_transpose_tile.cuh"
#include "kernels/device/layernorm_affine.cuh"
#include "kernels/device/warps_per_row.cuh"
#include "kernels/layernorm.h"

namespace gpt2 {

namespace {

// Loads in flight: a lane's vectors of the next rows.
template <int kRowsAtOnce>
struct StreamLoads {
  uint4 stream[kRowsAtOnce], added[kRowsAtOnce];
};

// Persistent loop over tiles of rows. With kTranspose the FP8 bytes of a tile collect in shared memory and leave when
// the tile is complete.
template <class Tiling, int kBlocks, int kRows, bool kTranspose> // kBlocks: CTAs per SM
__global__ void __launch_bounds__(Tiling::kThreads, kBlocks) layernorm_forward_fp8_kernel(LayerNormForwardFp8 p) {
  constexpr int kAtOnce = Tiling::kRowsAtOnce, kRowGroups = kRows / Fp8TransposeTile::kGroupRows;
  static_assert(kRows % kAtOnce == 0);
  constexpr bool kOneStep = kRows == Tiling::kStep; // one step covers a tile
  extern __shared__ __align__(16) uint8_t shared[]; // kTranspose: (kRows, C) FP8 bytes
  __shared__ RowReduction<Tiling, kAtOnce> sums, squares;
  const Fp8TransposeTile fp8_tile{shared, Fp8TransposeTile::pitch_for(p.C)};
  const RowThread<Tiling> thread;
  const int rows = static_cast<int>(p.rows), vectors = p.C / kVector, vector = thread.vector;
  const bool active = vector < vectors;
  const auto index = [&](int row) { return thread.index(row, vectors); };
  const float share = 1.0f / static_cast<float>(p.C);
  const Float8 weight = active ? load8(p.weight, vector) : Float8{}, bias = active ? load8(p.bias, vector) : Float8{};
  Fp8Quantizer quantizer(p.out);

  // Rows beyond the last keep the previous loads, which are not used.
  StreamLoads<kAtOnce> next{};
  const auto load_next = [&](int row) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (row + j >= rows || !active) continue;
      next.stream[j] = load_raw(p.residual_in, index(row + j));
      if (p.branch) next.added[j] = load_raw_streaming(p.branch, index(row + j));
    }
  };

  const int tiles = static_cast<int>(ceil_div(p.rows, kRows)), blocks = static_cast<int>(gridDim.x);
  load_next(static_cast<int>(blockIdx.x) * kRows + thread.first_row);
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += blocks) {
    const int row0 = tile * kRows;
    int r = thread.first_row;
    do {
      const int row = row0 + r;
      const StreamLoads<kAtOnce> now = next;
      r += Tiling::kStep;
      const bool more = !kOneStep && r < kRows; // in this tile
      load_next(more ? row + Tiling::kStep : (tile + blocks) * kRows + thread.first_row);

      uint4 stream[kAtOnce]; // rounded to BF16: what the backward pass reads
      float mean[kAtOnce], rstd[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        stream[j] = now.stream[j];
        if (p.branch) {
          Float8 x = unpack(now.stream[j]);
          x += unpack(now.added[j]);
          stream[j] = pack(x);
          if (active && row + j < rows) reinterpret_cast<uint4*>(p.residual_out)[index(row + j)] = stream[j];
        }
        const Float8 x = unpack(stream[j]);
        mean[j] = 0;
#pragma unroll
        for (int k = 0; k < kVector; ++k) mean[j] += x.v[k];
      }
      sums.allreduce(thread, mean);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        mean[j] *= share;
        const Float8 x = unpack(stream[j]);
        rstd[j] = 0;
#pragma unroll
        for (int k = 0; k < kVector; ++k) rstd[j] = fmaf(x.v[k] - mean[j], x.v[k] - mean[j], rstd[j]);
        if (!active) rstd[j] = 0;
      }
      squares.allreduce(thread, rstd);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (row + j >= rows) continue;
        rstd[j] = rsqrtf(rstd[j] * share + kLayerNormEpsilon);
        if (vector == 0) {
          p.mean[row + j] = mean[j];
          p.rstd[row + j] = rstd[j];
        }
        if (!active) continue;
        const uint2 bytes = quantizer(layernorm_affine(unpack(stream[j]), mean[j], rstd[j], weight, bias));
        reinterpret_cast<uint2*>(p.out.data)[index(row + j)] = bytes;
        if (kTranspose) *fp8_tile.at(row - row0 + j, vector) = bytes;
      }
    } while (!kOneStep && r < kRows);
    if constexpr (kTranspose) {
      __syncthreads();
      Fp8TransposeTile::for_each_group<kRowGroups, Tiling::kThreads>(vectors, [&](int group, int column) {
        if (row0 + group * Fp8TransposeTile::kGroupRows < rows)
          fp8_tile.write_transposed(p.out.transposed, p.rows, row0, group, column);
      });
      __syncthreads(); // the next rows overwrite the tile
    }
  }
  quantizer.commit(p.out);
}

template <class Tiling, int kBlocks>
void launch(CudaStream& cuda, const LayerNormForwardFp8& p) {
  // Transposed, for chunks of a few thousand rows of the final LayerNorm: short tiles keep all SMs busy.
  constexpr int kRows = Tiling::kStep, kTransposedRows = 2 * Fp8TransposeTile::kGroupRows;
  const int64_t multiprocessors = cuda.device->multiprocessors;
  if (!p.out.transposed) {
    const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kRows), kBlocks * multiprocessors));
    layernorm_forward_fp8_kernel<Tiling, kBlocks, kRows, false><<<blocks, Tiling::kThreads, 0, cuda.stream>>>(p);
    return;
  }
  const auto kernel = layernorm_forward_fp8_kernel<Tiling, 1, kTransposedRows, true>;
  const int shared = kTransposedRows * Fp8TransposeTile::pitch_for(p.C); // 64 KB at C = 2048
  if (shared + Fp8TransposeTile::kOtherBytes > cuda.device->shared_memory_per_block)
    throw Error(ExitCode::usage, "FP8 with " + std::to_string(p.C) + " channels is not supported on this GPU",
                "choose fewer channels, or --precision bf16");
  allow_shared_memory(*cuda.device, kernel, static_cast<size_t>(shared));
  const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kTransposedRows), multiprocessors));
  kernel<<<blocks, Tiling::kThreads, static_cast<size_t>(shared), cuda.stream>>>(p);
}

} // namespace

void layernorm_forward_fp8(CudaStream& cuda, const LayerNormForwardFp8& p) {
  using Widest = RowTiling<8, 1, 2>;
  static_assert(Widest::kMaxChannels == kMaxFp8Channels);
  const double bytes = (p.branch ? 7.0 : 3.0) + (p.out.transposed ? 1.0 : 0.0);
  const NvtxRange range(cuda, "layernorm_forward_fp8", bytes * static_cast<double>(p.rows) * p.C);
  const Requirements require("layernorm_forward_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.C % 16 == 0, "C is a multiple of 16");
  require(p.C <= kMaxFp8Channels, "C is at most 2048");
  require(indices_fit_in_32_bits(p.rows, p.C), "vector indices fit in 32 bits");
  // Two rows at once, and as many warps as 80 to 96 registers per thread allow (docs/benchmarks.md).
  if (p.C <= 512)
    launch<RowTiling<2, 4, 2>, 2>(cuda, p);
  else if (p.C <= 768)
    launch<RowTiling<3, 5, 2>, 1>(cuda, p);
  else if (p.C <= 1024)
    launch<RowTiling<4, 4, 2>, 1>(cuda, p);
  else if (p.C <= 1280)
    launch<RowTiling<5, 2, 2>, 2>(cuda, p);
  else if (p.C <= 1792)
    launch<RowTiling<7, 1, 2>, 3>(cuda, p);
  else
    launch<Widest, 3>(cuda, p);
  CUDA_CHECK_LAUNCH("layernorm_forward_fp8");
}

} // namespace gpt2
