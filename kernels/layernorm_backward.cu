// LayerNorm's backward, in BF16 and in FP8, in one pass over memory. A block walks over tiles of whole rows, so that a
// row's sums need no kernel of their own. A tile goes through four phases:
//
//   copy   dout and x into shared memory, asynchronously
//   sums   a warp per row: the means of dnorm and of dnorm * norm
//   apply  a thread per 8 rows x 8 columns: the gradient, the column sums, the codes, turned in registers and left
//          where the thread's own dout and x were
//   turn   FP8: the codes leave transposed, gathered from the tile's row groups. A tile of 32 rows makes a column's
//          piece a whole 32-byte sector; with 16 rows the kernel took twice as long
//
// While one of a multiprocessor's blocks computes, the others copy. In BF16 a tile has 8 rows: more blocks. Alone on an
// H200 at C = 768, BF16 takes 0.120 ms (3.3 TB/s) and FP8 0.216 ms (2.6 TB/s) for 65,536 rows.
#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/device/column_sum.cuh"
#include "kernels/device/fp8.cuh"
#include "kernels/device/layernorm_row.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/layernorm.h"
#include "kernels/layernorm_fp8.h"

namespace gpt2 {

namespace {

constexpr int kPatch = 8;         // rows and columns of a thread
constexpr int kRowsAtOnce = 2;    // of a patch, whose loads of the residual gradient are in flight together
constexpr int kTileBytes = 2 * 2; // per element: dout and x

struct RowFactors {
  float mean, rstd;
  float mean_dnorm;      // mean of dout * weight
  float mean_dnorm_norm; // mean of dout * weight * normalised x
};

// The sums of up to two rows of the tile, by one warp: two, so that one's shuffles hide the other's.
template <int kRows>
__device__ void sum_rows(RowFactors (&factors)[kRows], const uint4* dout_tile, const uint4* x_tile, const float* weight,
                         int first, int second, int vectors) {
  const int rows[2] = {first, second < kRows ? second : first};
  float dnorm_sum[2] = {}, dnorm_norm_sum[2] = {};
  for (int column = threadIdx.x % kWarp; column < vectors; column += kWarp) {
    const Float8 w = load8(weight, column);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const RowFactors& of_row = factors[rows[i]];
      const Float8 dout = unpack(dout_tile[rows[i] * vectors + column]), x = unpack(x_tile[rows[i] * vectors + column]);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const float dnorm = dout.v[k] * w.v[k];
        dnorm_sum[i] += dnorm;
        dnorm_norm_sum[i] += dnorm * ((x.v[k] - of_row.mean) * of_row.rstd);
      }
    }
  }
  const float scale = 1.0f / static_cast<float>(vectors * kVector);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    dnorm_sum[i] = warp_sum(dnorm_sum[i]) * scale;
    dnorm_norm_sum[i] = warp_sum(dnorm_norm_sum[i]) * scale;
  }
  if (threadIdx.x % kWarp != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    factors[rows[i]].mean_dnorm = dnorm_sum[i];
    factors[rows[i]].mean_dnorm_norm = dnorm_norm_sum[i];
  }
}

// A thread's codes wait in the low halves of its own vectors of a tile, a row in each. Turned, column j is where row j
// was.
__device__ inline uint2* waiting(uint4* own) { return reinterpret_cast<uint2*>(own); }

__device__ inline void turn_patch(uint4* own, int vectors) {
  uint2 codes[kPatch];
#pragma unroll
  for (int r = 0; r < kPatch; ++r) codes[r] = *waiting(own + r * vectors);
  transpose_8x8(codes);
#pragma unroll
  for (int j = 0; j < kPatch; ++j) *waiting(own + j * vectors) = codes[j];
}

// partials: (gridDim.x, 3, C): this block's column sums dweight, dbias and dbranch_bias; null where it only measures.
template <int kRowGroups, bool kFp8, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    layernorm_backward_kernel(LayerNormBackwardFp8 p, float* partials) {
  constexpr int kRows = kRowGroups * kPatch;
  extern __shared__ uint4 shared[];
  __shared__ RowFactors factors[kRows];
  const int vectors = p.C / kVector;
  uint4* const dout_tile = shared; // (kRows, vectors)
  uint4* const x_tile = shared + kRows * vectors;
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int column = threadIdx.x % vectors, row_group = threadIdx.x / vectors;
  const bool active = row_group < kRowGroups;
  const int own = row_group * kPatch * vectors + column; // this thread's patch; rows are `vectors` apart
  Fp8Quantizer gradient_quantizer(p.dresidual_fp8);
  Float8 dweight{}, dbias{}, dbranch{};

  const int64_t tiles = ceil_div(p.rows, kRows);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t first_row = tile * kRows;
    const int64_t patch_row = first_row + row_group * kPatch;
    const int64_t patch_at = patch_row * vectors + column; // in vectors
    // copy
    if (active) {
#pragma unroll
      for (int r = 0; r < kPatch; ++r) {
        const bool inside = patch_row + r < p.rows;
        const int64_t at = inside ? (patch_at + r * vectors) * kVector : 0;
        copy_async_16(dout_tile + own + r * vectors, p.dout + at, inside);
        copy_async_16(x_tile + own + r * vectors, p.x + at, inside);
        if (p.dresidual_in && column % 8 == 0) prefetch_l2(p.dresidual_in + at); // a 128-byte line is 8 vectors
      }
    }
    for (int r = threadIdx.x; r < kRows; r += blockDim.x) {
      const int64_t row = first_row + r;
      copy_async_4(&factors[r].mean, p.mean + (row < p.rows ? row : 0), row < p.rows);
      copy_async_4(&factors[r].rstd, p.rstd + (row < p.rows ? row : 0), row < p.rows);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();

    // sums
    for (int r = warp; r < kRows; r += 2 * warps) sum_rows(factors, dout_tile, x_tile, p.weight, r, r + warps, vectors);
    __syncthreads();

    // apply
    if (active) {
#pragma unroll 1 // registers: 80 let two blocks live on a multiprocessor
      for (int half = 0; half < kPatch; half += kRowsAtOnce) {
        uint4 above[kRowsAtOnce];
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const bool read = p.dresidual_in && patch_row + half + i < p.rows;
          above[i] = read ? load_raw_streaming(p.dresidual_in, patch_at + (half + i) * vectors) : uint4{};
        }
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          const int r = half + i;
          const RowFactors of_row = factors[row_group * kPatch + r];
          const Float8 dout = unpack(dout_tile[own + r * vectors]), x = unpack(x_tile[own + r * vectors]);
          const Float8 w = load8(p.weight, column); // from L1: registers are short
          Float8 dx = unpack(above[i]);
#pragma unroll
          for (int k = 0; k < kVector; ++k) { // all zeros in rows beyond the last
            const float norm = (x.v[k] - of_row.mean) * of_row.rstd;
            dweight.v[k] += dout.v[k] * norm;
            dbias.v[k] += dout.v[k];
            dx.v[k] += (dout.v[k] * w.v[k] - of_row.mean_dnorm - norm * of_row.mean_dnorm_norm) * of_row.rstd;
            dbranch.v[k] += dx.v[k];
          }
          if (patch_row + r >= p.rows) continue;
          if constexpr (kFp8) {
            const uint2 codes = gradient_quantizer(dx);
            if (p.dresidual_fp8.measures()) continue;
            if (p.dresidual_fp8.data) reinterpret_cast<uint2*>(p.dresidual_fp8.data)[patch_at + r * vectors] = codes;
            *waiting(dout_tile + own + r * vectors) = codes;
          }
          store8(p.dresidual_out, patch_at + r * vectors, dx);
        }
      }
    }
    if constexpr (kFp8) {
      if (p.dresidual_fp8.measures()) {
        __syncthreads();
        continue;
      }
      if (active && p.dresidual_fp8.transposed) turn_patch(dout_tile + own, vectors);
      if (p.out.transposed) {
        Fp8Quantizer quantizer(p.out);
        if (active) {
          const Float8 w = load8(p.weight, column), bias = load8(p.bias, column);
#pragma unroll 2
          for (int r = 0; r < kPatch; ++r) {
            if (patch_row + r >= p.rows) break;
            const RowFactors of_row = factors[row_group * kPatch + r];
            const Float8 x = unpack(x_tile[own + r * vectors]);
            *waiting(x_tile + own + r * vectors) = quantizer(layernorm_affine(x, of_row.mean, of_row.rstd, w, bias));
          }
          turn_patch(x_tile + own, vectors);
        }
        quantizer.commit(p.out); // unmetered as a rule
      }
    }
    __syncthreads();

    // turn: 16 rows of a column are 16 bytes, from two row groups
    if constexpr (kFp8) {
      constexpr int kParts = kRowGroups / 2;
      const int part = threadIdx.x % kParts, group = threadIdx.x / kParts % vectors;
      const int64_t row = first_row + part * 2 * kPatch;
      const auto write = [&](const uint4* codes, uint8_t* out, int j) {
        const uint4* const from = codes + (part * 2 * kPatch + j) * vectors + group;
        const uint2 upper = *reinterpret_cast<const uint2*>(from);
        const uint2 lower = *reinterpret_cast<const uint2*>(from + kPatch * vectors);
        *reinterpret_cast<uint4*>(out + (static_cast<int64_t>(group) * kPatch + j) * p.rows + row) =
            make_uint4(upper.x, upper.y, lower.x, lower.y);
      };
      if (active && row < p.rows) {
        for (int j = static_cast<int>(threadIdx.x) / kParts / vectors; j < kPatch; j += 2) {
          if (p.dresidual_fp8.transposed) write(dout_tile, p.dresidual_fp8.transposed, j);
          if (p.out.transposed) write(x_tile, p.out.transposed, j);
        }
      }
      __syncthreads(); // the next copies overwrite the codes
    }
  }

  if constexpr (kFp8) {
    if (p.dresidual_fp8.meter) gradient_quantizer.commit(p.dresidual_fp8);
  }
  if (!partials) return;
  // The row groups' sums, added in order.
  auto* const sums = reinterpret_cast<float*>(shared); // (kRowGroups, 3, C)
  if (active) {
    float* const mine = sums + row_group * 3 * p.C + column * kVector;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      mine[k] = dweight.v[k];
      mine[p.C + k] = dbias.v[k];
      mine[2 * p.C + k] = dbranch.v[k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 3 * p.C; i += blockDim.x) {
    float total = 0;
#pragma unroll
    for (int group = 0; group < kRowGroups; ++group) total += sums[group * 3 * p.C + i];
    partials[static_cast<int64_t>(blockIdx.x) * 3 * p.C + i] = total;
  }
}

template <int kRowGroups, bool kFp8, int kThreads, int kBlocks>
void launch(Cuda& cuda, const LayerNormBackwardFp8& p) {
  constexpr int kRows = kRowGroups * kPatch;
  const auto kernel = layernorm_backward_kernel<kRowGroups, kFp8, kThreads, kBlocks>;
  const auto threads = static_cast<unsigned>(ceil_div(p.C / kVector * kRowGroups, kWarp) * kWarp);
  const size_t shared = static_cast<size_t>(kRows) * p.C * kTileBytes; // FP8: 96 KiB at C = 768, 200 KiB at 1600
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  int resident = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(threads), shared));
  const int64_t wave =
      static_cast<int64_t>(cuda.device->multiprocessors) * max(resident, 1); // no block waits for another
  const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kRows), wave));
  float* const partials =
      p.dresidual_fp8.measures() ? nullptr : cuda.scratch<float>(static_cast<size_t>(blocks) * 3 * p.C);
  kernel<<<blocks, threads, shared, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH("layernorm_backward");
  if (partials)
    add_column_partials(cuda, {{p.dweight, p.dbias, p.dbranch_bias}, 3, partials, static_cast<int>(blocks), p.C});
}

// Does a tile of so many rows go into shared memory?
bool fits(const Cuda& cuda, int rows, int C) {
  constexpr int kStaticBytes = 2048;
  return rows * C * kTileBytes + kStaticBytes <= cuda.device->shared_memory_per_block;
}

void check_width(int C, int multiple, bool possible) {
  if (C % multiple == 0 && possible) return;
  throw Error(ExitCode::usage, std::to_string(C) + " channels are not supported on this GPU",
              "choose fewer channels, a multiple of " + std::to_string(multiple));
}

} // namespace

void layernorm_backward(Cuda& cuda, const LayerNormBackward<bf16>& p) {
  const Range range(cuda, "layernorm_backward", (p.accumulate ? 8.0 : 6.0) * static_cast<double>(p.rows) * p.C);
  check_width(p.C, kVector, p.C <= 4096 && fits(cuda, kPatch, p.C));
  launch<1, false, 512, 1>(cuda, {.dresidual_out = p.dresidual,
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
                                  .C = p.C});
}

void layernorm_backward_fp8(Cuda& cuda, const LayerNormBackwardFp8& p) {
  const double bytes =
      6.0 + (p.dresidual_fp8.data ? 2.0 : 0.0) + (p.out.transposed ? 1.0 : 0.0) + (p.dresidual_in ? 2.0 : 0.0);
  const Range range(cuda, "layernorm_backward_fp8", bytes * static_cast<double>(p.rows) * p.C);
  check_width(p.C, 16, p.C <= kMostFp8Channels && fits(cuda, 2 * kPatch, p.C));
  // 32 rows a tile, and as many registers as the threads leave; 16 where shared memory does not hold 32.
  const bool high = fits(cuda, 4 * kPatch, p.C);
  if (high && p.C <= 768) return launch<4, true, 384, 2>(cuda, p);
  if (high && p.C <= 1280) return launch<4, true, 640, 1>(cuda, p);
  if (high && p.C <= 1600) return launch<4, true, 800, 1>(cuda, p);
  launch<2, true, 512, 1>(cuda, p);
}

} // namespace gpt2
