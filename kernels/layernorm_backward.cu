// LayerNorm backward, in BF16 and in FP8, in one pass over memory.
//
// Persistent: one CTA per SM loops over tiles of rows. N warps hold a row in registers while the next rows load; column
// sums stay in registers to the end. In FP8 the bytes of a tile collect in shared memory and leave transposed, 16 rows
// per thread, 64 contiguous bytes. (128-byte runs, with tiles of 128 rows, were 3% slower: while a CTA transposes it
// loads nothing.)
//
// Bound: memory. 8 bytes per element in BF16, 11 in FP8: 0.096 and 0.132 ms for 65,536 rows of 768 at copy bandwidth on
// an H200; FP8 measured 0.171 ms.
#include "kernels/layernorm_backward.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/split_reduction.h"
#include "kernels/device/fp8_transpose_tile.cuh"
#include "kernels/device/layernorm_affine.cuh"
#include "kernels/device/warps_per_row.cuh"
#include "kernels/layernorm.h"
#include "kernels/layernorm_fp8.h"

namespace gpt2 {

namespace {

constexpr int kSums = 3; // dweight, dbias, dbranch_bias

// Loads in flight: a lane's vectors of the next rows.
template <int kRowsAtOnce>
struct RowLoads {
  uint4 dout[kRowsAtOnce], x[kRowsAtOnce], above[kRowsAtOnce];
  float mean[kRowsAtOnce], rstd[kRowsAtOnce];

  // Rows beyond the last keep the previous loads, which are not used.
  __device__ void load(const LayerNormBackwardFp8& p, int row, int rows, bool active, const auto& index) {
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      if (row + j >= rows) continue;
      if (active) {
        dout[j] = load_raw_streaming(p.dout, index(row + j));
        x[j] = load_raw_streaming(p.x, index(row + j));
        if (p.dresidual_in) above[j] = load_raw_streaming(p.dresidual_in, index(row + j));
      }
      mean[j] = p.mean[row + j];
      rstd[j] = p.rstd[row + j];
    }
  }
};

// The tile's FP8 bytes leave shared memory.
template <class Tiling, int kRowGroups>
__device__ void store_transposed(const LayerNormBackwardFp8& p, const Fp8TransposeTile& dx_tile, bool transposes_dx,
                                 const Fp8TransposeTile& out_tile, bool transposes_out, int row0, int rows,
                                 int vectors) {
  __syncthreads();
  Fp8TransposeTile::for_each_group<kRowGroups, Tiling::kThreads>(vectors, [&](int group, int column) {
    if (row0 + group * Fp8TransposeTile::kGroupRows >= rows) return;
    if (transposes_dx) dx_tile.write_transposed(p.dresidual_fp8.transposed, p.rows, row0, group, column);
    if (transposes_out) out_tile.write_transposed(p.out.transposed, p.rows, row0, group, column);
  });
  __syncthreads(); // the next rows overwrite the tile
}

// Adds a lane's column sums over the groups of the CTA, in order, and stores them. shared: (kGroups, kSums, C).
template <class Tiling>
__device__ void store_column_sums(float* partials, float* shared, const Float8& dweight, const Float8& dbias,
                                  const Float8& dbranch, const RowThread<Tiling>& thread, bool active,
                                  const LayerNormBackwardFp8& p) {
  if (active) {
    float* const mine = shared + (thread.group * kSums * p.C + thread.vector * kVector);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      mine[k] = dweight.v[k];
      mine[p.C + k] = dbias.v[k];
      mine[2 * p.C + k] = dbranch.v[k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSums * p.C; i += Tiling::kThreads) {
    float total = 0;
    for (int t = 0; t < Tiling::kGroups; ++t) total += shared[t * kSums * p.C + i];
    partials[static_cast<int64_t>(blockIdx.x) * kSums * p.C + i] = total;
  }
}

enum class Fp8Mode { none, no_statistics, with_statistics }; // with_statistics: of the recomputed output

// partials: (gridDim.x, kSums, C) column sums per CTA; null if amax_only().
template <class Tiling, int kRowGroups, Fp8Mode kMode>
__global__ void __launch_bounds__(Tiling::kThreads, 1)
    layernorm_backward_kernel(LayerNormBackwardFp8 p, float* partials) {
  constexpr int kRows = kRowGroups * Fp8TransposeTile::kGroupRows, kAtOnce = Tiling::kRowsAtOnce;
  constexpr bool kFp8 = kMode != Fp8Mode::none;
  static_assert(kRows % kAtOnce == 0);
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ RowReduction<Tiling, 2 * kAtOnce> exchanges[2]; // double-buffered: this step and the next
  const int pitch = Fp8TransposeTile::pitch_for(p.C);
  const Fp8TransposeTile dx_tile{shared, pitch}, out_tile{dx_tile.bytes + kRows * pitch, pitch};
  const RowThread<Tiling> thread;
  const int rows = static_cast<int>(p.rows), vectors = p.C / kVector, vector = thread.vector;
  const bool active = vector < vectors;
  const bool transposes_dx = kFp8 && p.dresidual_fp8.transposed, transposes_out = kFp8 && p.out.transposed;
  const auto index = [&](int row) { return thread.index(row, vectors); };
  const float share = 1.0f / static_cast<float>(p.C);
  const Float8 weight = active ? load8(p.weight, vector) : Float8{};
  const Float8 bias = active && transposes_out ? load8(p.bias, vector) : Float8{};
  Fp8Quantizer dx_quantizer(p.dresidual_fp8), out_quantizer(p.out);
  Float8 dweight{}, dbias{}, dbranch{};

  RowLoads<kAtOnce> next{};
  const int tiles = static_cast<int>(ceil_div(p.rows, kRows)), blocks = static_cast<int>(gridDim.x);
  next.load(p, static_cast<int>(blockIdx.x) * kRows + thread.first_row, rows, active, index);
  int parity = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += blocks) {
    const int row0 = tile * kRows;
#pragma unroll 1
    for (int r = thread.first_row; r < kRows; r += Tiling::kStep) {
      const int row = row0 + r;
      const RowLoads<kAtOnce> now = next;
      next.load(p, r + Tiling::kStep < kRows ? row + Tiling::kStep : (tile + blocks) * kRows + thread.first_row, rows,
                active, index);

      // Per row: sums of dnorm = dout * weight and of dnorm * norm.
      float sums[2 * kAtOnce] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const Float8 dout = unpack(now.dout[j]), x = unpack(now.x[j]);
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const float dnorm = dout.v[k] * weight.v[k];
          sums[2 * j] += dnorm;
          sums[2 * j + 1] = fmaf(dnorm, x.v[k] - now.mean[j], sums[2 * j + 1]);
        }
        sums[2 * j + 1] *= now.rstd[j];
      }
      exchanges[parity].allreduce(thread, sums);
      parity ^= 1;
      if (!active) continue;

#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (row + j >= rows) continue;
        const float mean_dnorm = sums[2 * j] * share, mean_dnorm_norm = sums[2 * j + 1] * share;
        const Float8 dout = unpack(now.dout[j]), x = unpack(now.x[j]);
        Float8 dx = unpack(now.above[j]);
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const float norm = (x.v[k] - now.mean[j]) * now.rstd[j];
          dweight.v[k] = fmaf(dout.v[k], norm, dweight.v[k]);
          dbias.v[k] += dout.v[k];
          dx.v[k] += (dout.v[k] * weight.v[k] - mean_dnorm - norm * mean_dnorm_norm) * now.rstd[j];
          dbranch.v[k] += dx.v[k];
        }
        if constexpr (kFp8) {
          const uint2 bytes = dx_quantizer(dx);
          if (p.dresidual_fp8.amax_only()) continue;
          if (p.dresidual_fp8.data) reinterpret_cast<uint2*>(p.dresidual_fp8.data)[index(row + j)] = bytes;
          if (transposes_dx) *dx_tile.at(r + j, vector) = bytes;
          if (transposes_out) {
            const Float8 out = layernorm_affine(x, now.mean[j], now.rstd[j], weight, bias);
            *out_tile.at(r + j, vector) =
                kMode == Fp8Mode::with_statistics ? out_quantizer(out) : out_quantizer.encode(out);
          }
        }
        store8(p.dresidual_out, index(row + j), dx);
      }
    }
    // Equal numbers of barriers for all groups: compute-sanitizer racecheck reports false races otherwise.
    constexpr int kRest = kRows % Tiling::kStep;
    if (kRest > 0 && thread.first_row >= kRest) thread.barrier();
    if constexpr (kFp8) {
      if (p.dresidual_fp8.amax_only() || !(transposes_dx || transposes_out)) continue;
      store_transposed<Tiling, kRowGroups>(p, dx_tile, transposes_dx, out_tile, transposes_out, row0, rows, vectors);
    }
  }

  if constexpr (kFp8) {
    if (p.dresidual_fp8.meta) dx_quantizer.commit(p.dresidual_fp8);
    if (kMode == Fp8Mode::with_statistics && transposes_out) out_quantizer.commit(p.out);
  }
  if (!partials) return;
  __syncthreads();
  store_column_sums(partials, reinterpret_cast<float*>(shared), dweight, dbias, dbranch, thread, active, p);
}

template <class Tiling, int kRowGroups, Fp8Mode kMode>
void launch(CudaStream& cuda, const LayerNormBackwardFp8& p) {
  constexpr int kRows = kRowGroups * Fp8TransposeTile::kGroupRows;
  const auto kernel = layernorm_backward_kernel<Tiling, kRowGroups, kMode>;
  const size_t bytes = kMode != Fp8Mode::none ? 2 * static_cast<size_t>(kRows) * Fp8TransposeTile::pitch_for(p.C) : 0;
  const size_t sums = static_cast<size_t>(Tiling::kGroups) * kSums * p.C * sizeof(float);
  const size_t shared = max(bytes, sums);
  allow_shared_memory(*cuda.device, kernel, shared);
  const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kRows), int64_t{cuda.device->multiprocessors}));
  float* const partials =
      p.dresidual_fp8.amax_only() ? nullptr : cuda.scratch<float>(static_cast<size_t>(blocks) * kSums * p.C);
  kernel<<<blocks, Tiling::kThreads, shared, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH("layernorm_backward");
  if (partials)
    add_column_partials(cuda, {{p.dweight, p.dbias, p.dbranch_bias}, kSums, partials, static_cast<int>(blocks), p.C});
}

// True if the FP8 bytes of `row_groups` fit into shared memory.
bool fits(const CudaStream& cuda, int row_groups, int C) {
  return 2 * row_groups * Fp8TransposeTile::kGroupRows * Fp8TransposeTile::pitch_for(C) +
             Fp8TransposeTile::kOtherBytes <=
         cuda.device->shared_memory_per_block;
}

constexpr int kTallTile = 4, kShortTile = 2, kShortestTile = 1; // groups of 16 rows

// For GPUs with less shared memory: two short tiles of 1,600 bytes per row exceed 99 KiB. Always with statistics: saves
// one instantiation.
template <class Tiling>
void launch_short_tiles(CudaStream& cuda, const LayerNormBackwardFp8& p) {
  if constexpr (Tiling::kMaxChannels > 1280) {
    if (!fits(cuda, kShortTile, p.C)) return launch<Tiling, kShortestTile, Fp8Mode::with_statistics>(cuda, p);
  }
  launch<Tiling, kShortTile, Fp8Mode::with_statistics>(cuda, p);
}

template <class Tiling>
void launch_fp8(CudaStream& cuda, const LayerNormBackwardFp8& p) {
  if (!fits(cuda, kTallTile, p.C)) return launch_short_tiles<Tiling>(cuda, p);
  // Only if the recipe treats the transpose as a tensor of its own.
  const bool with_statistics = p.out.transposed && p.out.statistics != Fp8Statistics::none;
  return with_statistics ? launch<Tiling, kTallTile, Fp8Mode::with_statistics>(cuda, p)
                         : launch<Tiling, kTallTile, Fp8Mode::no_statistics>(cuda, p);
}

template <class Tiling>
void launch_bf16(CudaStream& cuda, const LayerNormBackwardFp8& p) {
  launch<Tiling, kTallTile, Fp8Mode::none>(cuda, p); // without FP8 the tile is only the unit of scheduling
}

// Tilings for up to 1,280 channels: 10 to 12 warps, whose 168 registers per thread hold two rows. (16 warps have 128, 8
// have 255.)
template <class Launch>
bool with_two_rows(int C, Launch&& launch) {
  if (C <= 512)
    launch(RowTiling<2, 6, 2>{});
  else if (C <= 768)
    launch(RowTiling<3, 4, 2>{});
  else if (C <= 1024)
    launch(RowTiling<4, 3, 2>{});
  else if (C <= 1280)
    launch(RowTiling<5, 2, 2>{});
  else
    return false;
  return true;
}

void check_width(int C, int multiple, bool possible) {
  if (C % multiple == 0 && possible) return;
  throw Error(ExitCode::usage, std::to_string(C) + " channels are not supported on this GPU",
              "choose fewer channels, a multiple of " + std::to_string(multiple));
}

} // namespace

void layernorm_backward(CudaStream& cuda, const LayerNormBackward<bf16>& p) {
  const NvtxRange range(cuda, "layernorm_backward", (p.accumulate ? 8.0 : 6.0) * static_cast<double>(p.rows) * p.C);
  check_width(p.C, kVector, p.C <= kMaxGpuChannels);
  const Requirements require("layernorm_backward");
  require(indices_fit_in_32_bits(p.rows, p.C), "vector indices fit in 32 bits");
  const LayerNormBackwardFp8 plain{.dresidual_out = p.dresidual,
                                   .dresidual_in = p.accumulate ? p.dresidual : nullptr,
                                   .dresidual_fp8 = {},
                                   .out = {},
                                   .dweight = p.dweight,
                                   .dbias = p.dbias,
                                   .dbranch_bias = p.dbranch_bias,
                                   .dout = p.dout,
                                   .x = p.x,
                                   .weight = p.weight,
                                   .bias = nullptr,
                                   .mean = p.mean,
                                   .rstd = p.rstd,
                                   .rows = p.rows,
                                   .C = p.C};
  if (with_two_rows(p.C, [&](auto tiling) { launch_bf16<decltype(tiling)>(cuda, plain); })) return;
  if (p.C <= 1792) return launch_bf16<RowTiling<7, 1, 4>>(cuda, plain);
  if (p.C <= 2048) return launch_bf16<RowTiling<8, 1, 4>>(cuda, plain);
  using Widest = RowTiling<16, 1, 1>;
  static_assert(Widest::kMaxChannels == kMaxGpuChannels);
  launch_bf16<Widest>(cuda, plain);
}

void layernorm_backward_fp8(CudaStream& cuda, const LayerNormBackwardFp8& p) {
  const double bytes =
      6.0 + (p.dresidual_fp8.data ? 2.0 : 0.0) + (p.out.transposed ? 1.0 : 0.0) + (p.dresidual_in ? 2.0 : 0.0);
  const NvtxRange range(cuda, "layernorm_backward_fp8", bytes * static_cast<double>(p.rows) * p.C);
  check_width(p.C, 16, p.C <= kMaxFp8Channels && fits(cuda, kShortestTile, p.C));
  const Requirements require("layernorm_backward_fp8");
  require(p.rows % Fp8TransposeTile::kGroupRows == 0, "rows is a multiple of 16");
  require(indices_fit_in_32_bits(p.rows, p.C), "vector indices fit in 32 bits");
  if (with_two_rows(p.C, [&](auto tiling) { launch_fp8<decltype(tiling)>(cuda, p); })) return;
  if (p.C <= 1792) return launch_fp8<RowTiling<7, 2, 1>>(cuda, p);
  using Widest = RowTiling<8, 2, 1>;
  static_assert(Widest::kMaxChannels == kMaxFp8Channels);
  launch_short_tiles<Widest>(cuda, p); // 64 rows of more than 1,792 bytes exceed every GPU's shared memory
}

} // namespace gpt2
