// LayerNorm into FP8, in one pass over memory: rows by teams of warps, the next ones on their way. Its backward is in
// layernorm_backward.cu, with BF16's.
#include "kernels/layernorm_fp8.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/code_tile.cuh"
#include "kernels/device/layernorm_affine.cuh"
#include "kernels/device/row_team.cuh"

namespace gpt2 {

namespace {

// Rows on their way from memory: what a lane holds of them.
template <int kRowsAtOnce>
struct StreamLoads {
  uint4 stream[kRowsAtOnce], added[kRowsAtOnce];
};

// Blocks walk over tiles of rows; with kTranspose a tile's codes collect in shared memory and leave when it is
// complete.
template <class Teams, int kBlocks, int kRows, bool kTranspose> // kBlocks: of a multiprocessor
__global__ void __launch_bounds__(Teams::kThreads, kBlocks) layernorm_forward_fp8_kernel(LayerNormForwardFp8 p) {
  constexpr int kAtOnce = Teams::kRowsAtOnce, kRowGroups = kRows / CodeTile::kGroupRows;
  static_assert(kRows % kAtOnce == 0);
  constexpr bool kOneStep = kRows == Teams::kStep;  // the teams' rows at once are a tile
  extern __shared__ __align__(16) uint8_t shared[]; // kTranspose: (kRows, C) codes
  __shared__ TeamExchange<Teams, kAtOnce> sums, squares;
  const CodeTile tile_codes{shared, CodeTile::pitch_for(p.C)};
  const TeamPlace<Teams> place;
  const int rows = static_cast<int>(p.rows), vectors = p.C / kVector, vector = place.vector;
  const bool active = vector < vectors;
  const auto index = [&](int row) { return place.index(row, vectors); };
  const float share = 1.0f / static_cast<float>(p.C);
  const Float8 weight = active ? load8(p.weight, vector) : Float8{}, bias = active ? load8(p.bias, vector) : Float8{};
  Fp8Quantizer quantizer(p.out);

  // Rows that are not there keep what was loaded before, which nobody uses.
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
  load_next(static_cast<int>(blockIdx.x) * kRows + place.first_row);
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += blocks) {
    const int row0 = tile * kRows;
    int r = place.first_row;
    do {
      const int row = row0 + r;
      const StreamLoads<kAtOnce> now = next;
      r += Teams::kStep;
      const bool more = !kOneStep && r < kRows; // of this tile
      load_next(more ? row + Teams::kStep : (tile + blocks) * kRows + place.first_row);

      uint4 stream[kAtOnce]; // rounded: what backward will read, not what the add gave
      float mean[kAtOnce], rstd[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        stream[j] = now.stream[j];
        if (p.branch) {
          Float8 x = unpack(now.stream[j]);
          const Float8 added = unpack(now.added[j]);
#pragma unroll
          for (int k = 0; k < kVector; ++k) x.v[k] += added.v[k];
          stream[j] = pack(x);
          if (active && row + j < rows) reinterpret_cast<uint4*>(p.residual_out)[index(row + j)] = stream[j];
        }
        const Float8 x = unpack(stream[j]);
        mean[j] = 0;
#pragma unroll
        for (int k = 0; k < kVector; ++k) mean[j] += x.v[k];
      }
      sums.add_up(place, mean);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        mean[j] *= share;
        const Float8 x = unpack(stream[j]);
        rstd[j] = 0;
#pragma unroll
        for (int k = 0; k < kVector; ++k) rstd[j] = fmaf(x.v[k] - mean[j], x.v[k] - mean[j], rstd[j]);
        if (!active) rstd[j] = 0;
      }
      squares.add_up(place, rstd);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (row + j >= rows) continue;
        rstd[j] = rsqrtf(rstd[j] * share + kLayerNormEpsilon);
        if (vector == 0) {
          p.mean[row + j] = mean[j];
          p.rstd[row + j] = rstd[j];
        }
        if (!active) continue;
        const uint2 codes = quantizer(layernorm_affine(unpack(stream[j]), mean[j], rstd[j], weight, bias));
        reinterpret_cast<uint2*>(p.out.data)[index(row + j)] = codes;
        if (kTranspose) *tile_codes.at(row - row0 + j, vector) = codes;
      }
    } while (!kOneStep && r < kRows);
    if constexpr (kTranspose) {
      __syncthreads();
      CodeTile::for_each_group<kRowGroups, Teams::kThreads>(vectors, [&](int group, int column) {
        if (row0 + group * CodeTile::kGroupRows < rows) tile_codes.turn(p.out.transposed, p.rows, row0, group, column);
      });
      __syncthreads(); // the next rows overwrite the codes
    }
  }
  quantizer.commit(p.out);
}

template <class Teams, int kBlocks>
void launch(Cuda& cuda, const LayerNormForwardFp8& p) {
  // Transposed, chunks of some thousand rows of the final LayerNorm: short tiles leave no multiprocessor idle.
  constexpr int kRows = Teams::kStep, kTransposedRows = 2 * CodeTile::kGroupRows;
  const int64_t multiprocessors = cuda.device->multiprocessors;
  if (!p.out.transposed) {
    const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kRows), kBlocks * multiprocessors));
    layernorm_forward_fp8_kernel<Teams, kBlocks, kRows, false><<<blocks, Teams::kThreads, 0, cuda.stream>>>(p);
    return;
  }
  const auto kernel = layernorm_forward_fp8_kernel<Teams, 1, kTransposedRows, true>;
  const int shared = kTransposedRows * CodeTile::pitch_for(p.C); // 64 KB at C = 2048
  if (shared + CodeTile::kOtherBytes > cuda.device->shared_memory_per_block)
    throw Error(ExitCode::usage, "FP8 with " + std::to_string(p.C) + " channels is not supported on this GPU",
                "choose fewer channels, or --precision bf16");
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kTransposedRows), multiprocessors));
  kernel<<<blocks, Teams::kThreads, static_cast<size_t>(shared), cuda.stream>>>(p);
}

} // namespace

void layernorm_forward_fp8(Cuda& cuda, const LayerNormForwardFp8& p) {
  using Widest = RowTeams<8, 1, 2>;
  static_assert(Widest::kMostChannels == kMostFp8Channels);
  const double bytes = (p.branch ? 7.0 : 3.0) + (p.out.transposed ? 1.0 : 0.0);
  const Range range(cuda, "layernorm_forward_fp8", bytes * static_cast<double>(p.rows) * p.C);
  const Requirements require("layernorm_forward_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.C % 16 == 0, "C is a multiple of 16");
  require(p.C <= kMostFp8Channels, "C is at most 2048");
  require(places_fit(p.rows, p.C), "places are counted in 32 bits");
  // Two rows at once, and as many warps as their registers leave room for: some 80 to 96 each (docs/benchmarks.md).
  if (p.C <= 512)
    launch<RowTeams<2, 4, 2>, 2>(cuda, p);
  else if (p.C <= 768)
    launch<RowTeams<3, 5, 2>, 1>(cuda, p);
  else if (p.C <= 1024)
    launch<RowTeams<4, 4, 2>, 1>(cuda, p);
  else if (p.C <= 1280)
    launch<RowTeams<5, 2, 2>, 2>(cuda, p);
  else if (p.C <= 1792)
    launch<RowTeams<7, 1, 2>, 3>(cuda, p);
  else
    launch<Widest, 3>(cuda, p);
  CUDA_CHECK_LAUNCH("layernorm_forward_fp8");
}

} // namespace gpt2
