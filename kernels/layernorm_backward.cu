// LayerNorm's backward, in BF16 and in FP8, in one pass over memory.
//
// One block a multiprocessor walks over tiles of rows. A row belongs to a warp, or to a team of warps where it is long;
// it stays in registers while the next one is on its way. Column sums stay in registers for good. In FP8 the codes of a
// tile's rows collect in shared memory and leave transposed, 16 rows a thread, 64 rows in a piece. (Pieces of 128
// bytes, by tiles of 128 rows, were 3% slower: the longer a block turns a tile, the longer it loads nothing.)
//
// Bytes: 8 per element in BF16, 11 in FP8; 0.096 and 0.132 ms for 65,536 rows of 768 at the rate of a copy on an H200.
#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/device/column_sum.cuh"
#include "kernels/device/fp8.cuh"
#include "kernels/device/layernorm_row.cuh"
#include "kernels/layernorm.h"
#include "kernels/layernorm_fp8.h"

namespace gpt2 {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kSums = 3;       // dweight, dbias, dbranch_bias
constexpr int kGroupRows = 16; // whose codes of a column a thread gathers

// Codes of a tile's rows. Vectors of 8 codes are swizzled among 8 by the row's group of 16 rows, because threads gather
// the same columns of different groups side by side.
struct CodeTile {
  uint8_t* codes;
  int pitch; // bytes from row to row

  __host__ __device__ static constexpr int pitch_for(int C) { return (C + 63) / 64 * 64; }

  __device__ uint2* at(int row, int vector) const {
    return reinterpret_cast<uint2*>(codes + row * pitch) + (vector ^ (row / kGroupRows & 7));
  }

  // 16 rows of 8 columns to out, which is (C, rows), at its row `row0`.
  __device__ void turn(uint8_t* out, int64_t rows, int64_t row0, int group, int vector) const {
    uint2 upper[8], lower[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      upper[r] = *at(group * kGroupRows + r, vector);
      lower[r] = *at(group * kGroupRows + 8 + r, vector);
    }
    transpose_8x8(upper);
    transpose_8x8(lower);
    uint8_t* const column = out + static_cast<int64_t>(vector) * kVector * rows + row0 + group * kGroupRows;
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      *reinterpret_cast<uint4*>(column + j * rows) = make_uint4(upper[j].x, upper[j].y, lower[j].x, lower[j].y);
  }
};

// A row on its way from memory: what a lane holds of it.
template <int kVectors>
struct RowLoads {
  uint4 dout[kVectors], x[kVectors], above[kVectors];
  float mean, rstd;
};

// kTeam warps have a row; lane l of the team's warp w holds vectors 32 (w kVectors + i) + l.
// partials: (gridDim.x, kSums, C): this block's column sums; null where it only measures.
template <int kVectors, int kTeam, int kRowGroups, bool kFp8>
__global__ void __launch_bounds__(kThreads, 1) layernorm_backward_kernel(LayerNormBackwardFp8 p, float* partials) {
  constexpr int kTeams = kWarps / kTeam, kRows = kRowGroups * kGroupRows;
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float2 exchange[2][kWarps];                  // the sums of a team's warps, of this row and of the next
  auto* const weights = reinterpret_cast<float*>(shared); // (C), then the biases
  const int pitch = CodeTile::pitch_for(p.C);
  const CodeTile dx_codes{shared + 2 * p.C * sizeof(float), pitch}, out_codes{dx_codes.codes + kRows * pitch, pitch};
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, team = warp / kTeam;
  const int vectors = p.C / kVector, first_vector = warp % kTeam * kVectors * kWarp + lane;
  const bool turns_dx = kFp8 && p.dresidual_fp8.transposed, turns_out = kFp8 && p.out.transposed;
  Fp8Quantizer dx_quantizer(p.dresidual_fp8), out_quantizer(p.out);
  Float8 dweight[kVectors] = {}, dbias[kVectors] = {}, dbranch[kVectors] = {};

  for (int i = threadIdx.x; i < p.C; i += kThreads) {
    weights[i] = p.weight[i];
    if (turns_out) weights[p.C + i] = p.bias[i];
  }
  __syncthreads();

  const auto load = [&](int64_t row) {
    RowLoads<kVectors> loads{};
    if (row >= p.rows) return loads;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int vector = first_vector + i * kWarp;
      if (vector >= vectors) continue;
      const int64_t at = row * vectors + vector;
      loads.dout[i] = load_raw_streaming(p.dout, at);
      loads.x[i] = load_raw_streaming(p.x, at);
      if (p.dresidual_in) loads.above[i] = load_raw_streaming(p.dresidual_in, at);
    }
    loads.mean = p.mean[row];
    loads.rstd = p.rstd[row];
    return loads;
  };

  const int64_t tiles = ceil_div(p.rows, kRows);
  RowLoads<kVectors> next = load(static_cast<int64_t>(blockIdx.x) * kRows + team);
  int parity = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row0 = tile * kRows;
    for (int r = team; r < kRows; r += kTeams) {
      const int64_t row = row0 + r;
      const RowLoads<kVectors> now = next;
      next = load(r + kTeams < kRows ? row + kTeams : (tile + gridDim.x) * kRows + team);
      if (row >= p.rows) continue; // the same for the whole team

      // The means of dnorm = dout * weight and of dnorm * norm.
      float dnorm_sum = 0, dnorm_norm_sum = 0;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int vector = first_vector + i * kWarp;
        if (vector >= vectors) continue;
        const Float8 dout = unpack(now.dout[i]), x = unpack(now.x[i]), w = load8(weights, vector);
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const float dnorm = dout.v[k] * w.v[k];
          dnorm_sum += dnorm;
          dnorm_norm_sum = fmaf(dnorm, (x.v[k] - now.mean) * now.rstd, dnorm_norm_sum);
        }
      }
      float2 sums{warp_sum(dnorm_sum), warp_sum(dnorm_norm_sum)};
      if constexpr (kTeam > 1) {
        if (lane == 0) exchange[parity][warp] = sums;
        asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(kTeam * kWarp) : "memory");
        sums = {};
#pragma unroll
        for (int w = 0; w < kTeam; ++w) {
          sums.x += exchange[parity][team * kTeam + w].x;
          sums.y += exchange[parity][team * kTeam + w].y;
        }
        parity ^= 1;
      }
      const float mean_dnorm = sums.x / static_cast<float>(p.C), mean_dnorm_norm = sums.y / static_cast<float>(p.C);

#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int vector = first_vector + i * kWarp;
        if (vector >= vectors) continue;
        const int64_t at = row * vectors + vector;
        const Float8 dout = unpack(now.dout[i]), x = unpack(now.x[i]), w = load8(weights, vector);
        Float8 dx = unpack(now.above[i]);
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const float norm = (x.v[k] - now.mean) * now.rstd;
          dweight[i].v[k] += dout.v[k] * norm;
          dbias[i].v[k] += dout.v[k];
          dx.v[k] += (dout.v[k] * w.v[k] - mean_dnorm - norm * mean_dnorm_norm) * now.rstd;
          dbranch[i].v[k] += dx.v[k];
        }
        if constexpr (kFp8) {
          const uint2 codes = dx_quantizer(dx);
          if (p.dresidual_fp8.measures()) continue;
          if (p.dresidual_fp8.data) reinterpret_cast<uint2*>(p.dresidual_fp8.data)[at] = codes;
          if (turns_dx) *dx_codes.at(r, vector) = codes;
          if (turns_out)
            *out_codes.at(r, vector) =
                out_quantizer(layernorm_affine(x, now.mean, now.rstd, w, load8(weights + p.C, vector)));
        }
        store8(p.dresidual_out, at, dx);
      }
    }
    if constexpr (kFp8) {
      if (p.dresidual_fp8.measures() || !(turns_dx || turns_out)) continue;
      __syncthreads();
      for (int task = threadIdx.x; task < kRowGroups * vectors; task += kThreads) { // neighbours: groups of rows
        const int group = task % kRowGroups, vector = task / kRowGroups;
        if (row0 + group * kGroupRows >= p.rows) continue;
        if (turns_dx) dx_codes.turn(p.dresidual_fp8.transposed, p.rows, row0, group, vector);
        if (turns_out) out_codes.turn(p.out.transposed, p.rows, row0, group, vector);
      }
      __syncthreads(); // the next rows overwrite the codes
    }
  }

  if constexpr (kFp8) {
    if (p.dresidual_fp8.meter) dx_quantizer.commit(p.dresidual_fp8);
    if (turns_out) out_quantizer.commit(p.out); // unmetered as a rule
  }
  if (!partials) return;
  __syncthreads();
  // The teams' sums, added in order.
  auto* const sums = reinterpret_cast<float*>(shared); // (kTeams, kSums, C)
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = first_vector + i * kWarp;
    if (vector >= vectors) continue;
    float* const mine = sums + (team * kSums * p.C + vector * kVector);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      mine[k] = dweight[i].v[k];
      mine[p.C + k] = dbias[i].v[k];
      mine[2 * p.C + k] = dbranch[i].v[k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSums * p.C; i += kThreads) {
    float total = 0;
    for (int t = 0; t < kTeams; ++t) total += sums[t * kSums * p.C + i];
    partials[static_cast<int64_t>(blockIdx.x) * kSums * p.C + i] = total;
  }
}

template <int kVectors, int kTeam, int kRowGroups, bool kFp8>
void launch(Cuda& cuda, const LayerNormBackwardFp8& p) {
  constexpr int kRows = kRowGroups * kGroupRows;
  const auto kernel = layernorm_backward_kernel<kVectors, kTeam, kRowGroups, kFp8>;
  const size_t vectors = 2 * static_cast<size_t>(p.C) * sizeof(float); // weight and bias
  const size_t codes = kFp8 ? 2 * static_cast<size_t>(kRows) * CodeTile::pitch_for(p.C) : 0;
  const size_t sums = static_cast<size_t>(kWarps / kTeam) * kSums * p.C * sizeof(float);
  const size_t shared = max(vectors + codes, sums);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kRows), int64_t{cuda.device->multiprocessors}));
  float* const partials =
      p.dresidual_fp8.measures() ? nullptr : cuda.scratch<float>(static_cast<size_t>(blocks) * kSums * p.C);
  kernel<<<blocks, kThreads, shared, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH("layernorm_backward");
  if (partials)
    add_column_partials(cuda, {{p.dweight, p.dbias, p.dbranch_bias}, kSums, partials, static_cast<int>(blocks), p.C});
}

// Do the codes of so many rows go into shared memory?
bool fits(const Cuda& cuda, int row_groups, int C) {
  constexpr int kStaticBytes = 1024;
  return 2 * row_groups * kGroupRows * CodeTile::pitch_for(C) + 2 * C * static_cast<int>(sizeof(float)) +
             kStaticBytes <=
         cuda.device->shared_memory_per_block;
}

template <int kVectors, int kTeam>
void launch_fp8(Cuda& cuda, const LayerNormBackwardFp8& p) {
  if (fits(cuda, 4, p.C)) return launch<kVectors, kTeam, 4, true>(cuda, p);
  launch<kVectors, kTeam, 2, true>(cuda, p);
}

void check_width(int C, int multiple, bool possible) {
  if (C % multiple == 0 && possible) return;
  throw Error(ExitCode::usage, std::to_string(C) + " channels are not supported on this GPU",
              "choose fewer channels, a multiple of " + std::to_string(multiple));
}

} // namespace

void layernorm_backward(Cuda& cuda, const LayerNormBackward<bf16>& p) {
  const Range range(cuda, "layernorm_backward", (p.accumulate ? 8.0 : 6.0) * static_cast<double>(p.rows) * p.C);
  check_width(p.C, kVector, p.C <= 4096);
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
  constexpr int kRowGroups = 4; // shorter walks between the ends of blocks
  if (p.C <= 768) return launch<3, 1, kRowGroups, false>(cuda, plain);
  if (p.C <= 1024) return launch<4, 1, kRowGroups, false>(cuda, plain);
  if (p.C <= 1536) return launch<3, 2, kRowGroups, false>(cuda, plain);
  if (p.C <= 2048) return launch<4, 2, kRowGroups, false>(cuda, plain);
  launch<4, 4, kRowGroups, false>(cuda, plain);
}

void layernorm_backward_fp8(Cuda& cuda, const LayerNormBackwardFp8& p) {
  const double bytes =
      6.0 + (p.dresidual_fp8.data ? 2.0 : 0.0) + (p.out.transposed ? 1.0 : 0.0) + (p.dresidual_in ? 2.0 : 0.0);
  const Range range(cuda, "layernorm_backward_fp8", bytes * static_cast<double>(p.rows) * p.C);
  check_width(p.C, 16, p.C <= kMostFp8Channels && fits(cuda, 2, p.C));
  if (p.C <= 768) return launch_fp8<3, 1>(cuda, p);
  if (p.C <= 1024) return launch_fp8<4, 1>(cuda, p);
  if (p.C <= 1536) return launch_fp8<3, 2>(cuda, p);
  launch_fp8<4, 2>(cuda, p);
}

} // namespace gpt2
