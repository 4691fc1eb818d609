// LayerNorm's backward, in BF16 and in FP8, in one pass over memory.
//
// One block a multiprocessor walks over tiles of rows. A row belongs to a team of warps and stays in registers while
// the next one is on its way; column sums stay in registers for good. In FP8 the codes of a tile's rows collect in
// shared memory and leave transposed, 16 rows a thread, 64 rows in a piece. (Pieces of 128 bytes, by tiles of 128 rows,
// were 3% slower: the longer a block turns a tile, the longer it loads nothing.)
//
// Bytes: 8 per element in BF16, 11 in FP8; 0.096 and 0.132 ms for 65,536 rows of 768 at the rate of a copy on an H200.
#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/code_tile.cuh"
#include "kernels/device/column_sum.cuh"
#include "kernels/device/layernorm_affine.cuh"
#include "kernels/device/row_team.cuh"
#include "kernels/layernorm.h"
#include "kernels/layernorm_fp8.h"

namespace gpt2 {

namespace {

constexpr int kSums = 3; // dweight, dbias, dbranch_bias

// Rows on their way from memory: what a lane holds of them.
template <int kRowsAtOnce>
struct RowLoads {
  uint4 dout[kRowsAtOnce], x[kRowsAtOnce], above[kRowsAtOnce];
  float mean[kRowsAtOnce], rstd[kRowsAtOnce];
};

enum class Codes { none, plain, metered }; // in FP8: is the output, which is made again, metered?

// partials: (gridDim.x, kSums, C): this block's column sums; null where it only measures.
template <class Teams, int kRowGroups, Codes kCodes>
__global__ void __launch_bounds__(Teams::kThreads, 1)
    layernorm_backward_kernel(LayerNormBackwardFp8 p, float* partials) {
  constexpr int kRows = kRowGroups * CodeTile::kGroupRows, kAtOnce = Teams::kRowsAtOnce;
  constexpr bool kFp8 = kCodes != Codes::none;
  static_assert(kRows % kAtOnce == 0);
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ TeamExchange<Teams, 2 * kAtOnce> exchanges[2]; // of these rows and of the next
  const int pitch = CodeTile::pitch_for(p.C);
  const CodeTile dx_codes{shared, pitch}, out_codes{dx_codes.codes + kRows * pitch, pitch};
  const TeamPlace<Teams> place;
  const int rows = static_cast<int>(p.rows), vectors = p.C / kVector, vector = place.vector;
  const bool active = vector < vectors;
  const bool turns_dx = kFp8 && p.dresidual_fp8.transposed, turns_out = kFp8 && p.out.transposed;
  const auto index = [&](int row) { return place.index(row, vectors); };
  const float share = 1.0f / static_cast<float>(p.C);
  const Float8 weight = active ? load8(p.weight, vector) : Float8{};
  const Float8 bias = active && turns_out ? load8(p.bias, vector) : Float8{};
  Fp8Quantizer dx_quantizer(p.dresidual_fp8), out_quantizer(p.out);
  Float8 dweight{}, dbias{}, dbranch{};

  // Rows that are not there keep what was loaded before, which nobody uses.
  RowLoads<kAtOnce> next{};
  const auto load_next = [&](int row) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (row + j >= rows) continue;
      if (active) {
        next.dout[j] = load_raw_streaming(p.dout, index(row + j));
        next.x[j] = load_raw_streaming(p.x, index(row + j));
        if (p.dresidual_in) next.above[j] = load_raw_streaming(p.dresidual_in, index(row + j));
      }
      next.mean[j] = p.mean[row + j];
      next.rstd[j] = p.rstd[row + j];
    }
  };

  const int tiles = static_cast<int>(ceil_div(p.rows, kRows)), blocks = static_cast<int>(gridDim.x);
  load_next(static_cast<int>(blockIdx.x) * kRows + place.first_row);
  int parity = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += blocks) {
    const int row0 = tile * kRows;
#pragma unroll 1
    for (int r = place.first_row; r < kRows; r += Teams::kStep) {
      const int row = row0 + r;
      const RowLoads<kAtOnce> now = next;
      load_next(r + Teams::kStep < kRows ? row + Teams::kStep : (tile + blocks) * kRows + place.first_row);

      // Of each row the sums of dnorm = dout * weight and of dnorm * norm.
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
      exchanges[parity].add_up(place, sums);
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
          const uint2 codes = dx_quantizer(dx);
          if (p.dresidual_fp8.measures()) continue;
          if (p.dresidual_fp8.data) reinterpret_cast<uint2*>(p.dresidual_fp8.data)[index(row + j)] = codes;
          if (turns_dx) *dx_codes.at(r + j, vector) = codes;
          if (turns_out) {
            const Float8 out = layernorm_affine(x, now.mean[j], now.rstd[j], weight, bias);
            *out_codes.at(r + j, vector) = kCodes == Codes::metered ? out_quantizer(out) : out_quantizer.encode(out);
          }
        }
        store8(p.dresidual_out, index(row + j), dx);
      }
    }
    // As many barriers for each team: of those that have passed fewer, racecheck reports races that are none.
    constexpr int kRest = kRows % Teams::kStep;
    if (kRest > 0 && place.first_row >= kRest) place.barrier();
    if constexpr (kFp8) {
      if (p.dresidual_fp8.measures() || !(turns_dx || turns_out)) continue;
      __syncthreads();
      CodeTile::for_each_group<kRowGroups, Teams::kThreads>(vectors, [&](int group, int column) {
        if (row0 + group * CodeTile::kGroupRows >= rows) return;
        if (turns_dx) dx_codes.turn(p.dresidual_fp8.transposed, p.rows, row0, group, column);
        if (turns_out) out_codes.turn(p.out.transposed, p.rows, row0, group, column);
      });
      __syncthreads(); // the next rows overwrite the codes
    }
  }

  if constexpr (kFp8) {
    if (p.dresidual_fp8.meter) dx_quantizer.commit(p.dresidual_fp8);
    if (kCodes == Codes::metered && turns_out) out_quantizer.commit(p.out);
  }
  if (!partials) return;
  __syncthreads();
  // The teams' sums, added in order.
  auto* const sums = reinterpret_cast<float*>(shared); // (kTeams, kSums, C)
  if (active) {
    float* const mine = sums + (place.team * kSums * p.C + vector * kVector);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      mine[k] = dweight.v[k];
      mine[p.C + k] = dbias.v[k];
      mine[2 * p.C + k] = dbranch.v[k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSums * p.C; i += Teams::kThreads) {
    float total = 0;
    for (int t = 0; t < Teams::kTeams; ++t) total += sums[t * kSums * p.C + i];
    partials[static_cast<int64_t>(blockIdx.x) * kSums * p.C + i] = total;
  }
}

template <class Teams, int kRowGroups, Codes kCodes>
void launch(Cuda& cuda, const LayerNormBackwardFp8& p) {
  constexpr int kRows = kRowGroups * CodeTile::kGroupRows;
  const auto kernel = layernorm_backward_kernel<Teams, kRowGroups, kCodes>;
  const size_t codes = kCodes != Codes::none ? 2 * static_cast<size_t>(kRows) * CodeTile::pitch_for(p.C) : 0;
  const size_t sums = static_cast<size_t>(Teams::kTeams) * kSums * p.C * sizeof(float);
  const size_t shared = max(codes, sums);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kRows), int64_t{cuda.device->multiprocessors}));
  float* const partials =
      p.dresidual_fp8.measures() ? nullptr : cuda.scratch<float>(static_cast<size_t>(blocks) * kSums * p.C);
  kernel<<<blocks, Teams::kThreads, shared, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH("layernorm_backward");
  if (partials)
    add_column_partials(cuda, {{p.dweight, p.dbias, p.dbranch_bias}, kSums, partials, static_cast<int>(blocks), p.C});
}

// Do the codes of so many rows go into shared memory?
bool fits(const Cuda& cuda, int row_groups, int C) {
  return 2 * row_groups * CodeTile::kGroupRows * CodeTile::pitch_for(C) + CodeTile::kOtherBytes <=
         cuda.device->shared_memory_per_block;
}

constexpr int kTallTile = 4, kShortTile = 2; // row groups

// Where shared memory is short. Metered or not: one kernel less.
template <class Teams>
void launch_short_tiles(Cuda& cuda, const LayerNormBackwardFp8& p) {
  launch<Teams, kShortTile, Codes::metered>(cuda, p);
}

template <class Teams>
void launch_fp8(Cuda& cuda, const LayerNormBackwardFp8& p) {
  if (!fits(cuda, kTallTile, p.C)) return launch_short_tiles<Teams>(cuda, p);
  // Only where the recipe counts the transpose as a tensor of its own.
  const bool metered = p.out.transposed && p.out.metering != Fp8Metering::none;
  return metered ? launch<Teams, kTallTile, Codes::metered>(cuda, p) : launch<Teams, kTallTile, Codes::plain>(cuda, p);
}

template <class Teams>
void launch_bf16(Cuda& cuda, const LayerNormBackwardFp8& p) {
  launch<Teams, kTallTile, Codes::none>(cuda, p); // without codes a tile is what a block takes at a time
}

// The teams of up to 1,280 channels, if there are so few: 10 to 12 warps, whose 168 registers a thread hold two rows at
// once. (16 warps have 128, 8 have 255.)
template <class Launch>
bool with_two_rows(int C, Launch&& launch) {
  if (C <= 512)
    launch(RowTeams<2, 6, 2>{});
  else if (C <= 768)
    launch(RowTeams<3, 4, 2>{});
  else if (C <= 1024)
    launch(RowTeams<4, 3, 2>{});
  else if (C <= 1280)
    launch(RowTeams<5, 2, 2>{});
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

void layernorm_backward(Cuda& cuda, const LayerNormBackward<bf16>& p) {
  const Range range(cuda, "layernorm_backward", (p.accumulate ? 8.0 : 6.0) * static_cast<double>(p.rows) * p.C);
  check_width(p.C, kVector, p.C <= kMostGpuChannels);
  const Requirements require("layernorm_backward");
  require(places_fit(p.rows, p.C), "places are counted in 32 bits");
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
  if (with_two_rows(p.C, [&](auto teams) { launch_bf16<decltype(teams)>(cuda, plain); })) return;
  if (p.C <= 1792) return launch_bf16<RowTeams<7, 1, 4>>(cuda, plain);
  if (p.C <= 2048) return launch_bf16<RowTeams<8, 1, 4>>(cuda, plain);
  using Widest = RowTeams<16, 1, 1>;
  static_assert(Widest::kMostChannels == kMostGpuChannels);
  launch_bf16<Widest>(cuda, plain);
}

void layernorm_backward_fp8(Cuda& cuda, const LayerNormBackwardFp8& p) {
  const double bytes =
      6.0 + (p.dresidual_fp8.data ? 2.0 : 0.0) + (p.out.transposed ? 1.0 : 0.0) + (p.dresidual_in ? 2.0 : 0.0);
  const Range range(cuda, "layernorm_backward_fp8", bytes * static_cast<double>(p.rows) * p.C);
  check_width(p.C, 16, p.C <= kMostFp8Channels && fits(cuda, kShortTile, p.C));
  const Requirements require("layernorm_backward_fp8");
  require(p.rows % CodeTile::kGroupRows == 0, "rows is a multiple of 16");
  require(places_fit(p.rows, p.C), "places are counted in 32 bits");
  if (with_two_rows(p.C, [&](auto teams) { launch_fp8<decltype(teams)>(cuda, p); })) return;
  if (p.C <= 1792) return launch_fp8<RowTeams<7, 2, 1>>(cuda, p);
  using Widest = RowTeams<8, 2, 1>;
  static_assert(Widest::kMostChannels == kMostFp8Channels);
  launch_short_tiles<Widest>(cuda, p); // 64 rows of more than 1,792 codes fit no GPU's shared memory
}

} // namespace gpt2
