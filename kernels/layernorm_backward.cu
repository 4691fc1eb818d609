// LayerNorm's backward with column sums: a block walks pairs of rows, a thread owns 8 columns of all of them, so column
// sums stay in its registers. Rows come through a ring of asynchronous copies: the next pairs are on their way while
// one waits at the barrier for its row sums.
#include "kernels/layernorm_backward.cuh"

#include <cuda_bf16.h>

#include "kernels/column_sum.cuh"
#include "kernels/profile.h"
#include "kernels/ptx.cuh"
#include "kernels/vector.cuh"

namespace gpt2 {

namespace {

constexpr int kPair = 2;   // rows handled together: one barrier for both
constexpr int kStages = 2; // pairs in the ring: one on its way while one is worked on
constexpr int kInputs = 3; // dout, x, dresidual_in
constexpr int kMaxWarps = 16;

// Bytes of the ring per thread. Each thread copies and reads only its own vectors: waiting for its own copies is
// enough.
constexpr int kRingBytes = kStages * kPair * kInputs * 16;

// partials: (gridDim.x, 3, C): dweight, dbias, dbranch_bias of this block's rows. With `row_sums`, only those and the
// sums dweight and dbias are written.
__global__ void layernorm_backward_kernel(LayerNormBackward<bf16> p, LayerNormRowSums* row_sums, float* partials) {
  extern __shared__ uint4 shared[];                // ring: (stage, row, input, thread)
  __shared__ float2 exchange[2][kMaxWarps][kPair]; // double-buffered
  uint4* const ring = shared + threadIdx.x;
  const int vectors = p.C / kVector, column = threadIdx.x;
  const bool active = column < vectors, with_residual = p.accumulate && !row_sums;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const Float8 weight = active ? load8(p.weight, column) : Float8{};

  // This block's pairs are blockIdx.x, blockIdx.x + gridDim.x, ...
  const int rows = static_cast<int>(p.rows), all_pairs = (rows + kPair - 1) / kPair;
  const auto first_row = [&](int pair) { return pair * kPair; };
  const auto slot = [&](int stage, int row, int input) {
    return ring + ((stage * kPair + row) * kInputs + input) * blockDim.x;
  };
  const auto fetch = [&](int pair, int stage) {
    if (pair < all_pairs && active) {
      const int row = first_row(pair);
#pragma unroll
      for (int r = 0; r < kPair; ++r) {
        const bool valid = row + r < rows;
        const int64_t at = valid ? (static_cast<int64_t>(row + r) * vectors + column) * kVector : 0;
        copy_async_16(slot(stage, r, 0), p.dout + at, valid);
        copy_async_16(slot(stage, r, 1), p.x + at, valid);
        if (with_residual) copy_async_16(slot(stage, r, 2), p.dresidual + at, valid);
      }
    }
    copy_async_commit(); // an empty group where there is nothing: the count of groups stays that of pairs
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch(static_cast<int>(blockIdx.x + i * gridDim.x), i);

  Float8 dweight{}, dbias{}, dbranch{};
  int stage = 0, buffer = 0;
  for (int pair = blockIdx.x; pair < all_pairs; pair += gridDim.x) {
    fetch(pair + (kStages - 1) * static_cast<int>(gridDim.x),
          stage == 0 ? kStages - 1 : stage - 1); // where the last pair was
    copy_async_wait<kStages - 1>();
    const int first = first_row(pair);
    float mean[kPair], rstd[kPair];
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      const int row = first + r;
      const bool valid = active && row < rows;
      mean[r] = row < rows ? p.mean[row] : 0;
      rstd[r] = row < rows ? p.rstd[row] : 0;
      const Float8 dout = valid ? unpack(*slot(stage, r, 0)) : Float8{},
                   x = valid ? unpack(*slot(stage, r, 1)) : Float8{};
      float2 sums{0, 0}; // of dnorm and dnorm * norm
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const float norm = (x.v[k] - mean[r]) * rstd[r],
                    dnorm = dout.v[k] * weight.v[k]; // dout is 0 where nothing is valid
        sums.x += dnorm;
        sums.y += dnorm * norm;
        dweight.v[k] += dout.v[k] * norm;
        dbias.v[k] += dout.v[k];
      }
      sums.x = warp_sum(sums.x);
      sums.y = warp_sum(sums.y);
      if (lane == 0) exchange[buffer][warp][r] = sums;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      float2 sums{0, 0};
      for (int w = 0; w < warps; ++w) {
        sums.x += exchange[buffer][w][r].x;
        sums.y += exchange[buffer][w][r].y;
      }
      const LayerNormRowSums of_row{sums.x / static_cast<float>(p.C), sums.y / static_cast<float>(p.C)};
      if (first + r >= rows) continue;
      if (row_sums) {
        if (threadIdx.x == 0) row_sums[first + r] = of_row;
        continue;
      }
      if (!active) continue;
      // From the ring again: cheaper than keeping 32 registers across the barrier.
      const Float8 dout = unpack(*slot(stage, r, 0)), x = unpack(*slot(stage, r, 1));
      Float8 dx = with_residual ? unpack(*slot(stage, r, 2)) : Float8{};
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const float norm = (x.v[k] - mean[r]) * rstd[r];
        dx.v[k] += (dout.v[k] * weight.v[k] - of_row.mean_dnorm - norm * of_row.mean_dnorm_norm) * rstd[r];
        dbranch.v[k] += dx.v[k];
      }
      store8(p.dresidual, static_cast<int64_t>(first + r) * vectors + column, dx);
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
    buffer ^= 1;
  }
  if (!active) return;
  float* const sums = partials + static_cast<int64_t>(blockIdx.x) * 3 * p.C + column * kVector;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    sums[k] = dweight.v[k];
    sums[p.C + k] = dbias.v[k];
    sums[2 * p.C + k] = dbranch.v[k];
  }
}

} // namespace

// At most 2,048 threads or 32 blocks a multiprocessor: 26 MB at 768 channels, 23 MB at 1600.
size_t layernorm_backward_partials(const Cuda& cuda, int C) {
  const int64_t threads = ceil_div(C / kVector, kWarp) * kWarp;
  return static_cast<size_t>(cuda.multiprocessors * min(int64_t{32}, 2048 / threads) * 3 * C);
}

// In place is fine: a thread reads a vector before it writes it, and nobody else does.
void layernorm_backward_sums(Cuda& cuda, const LayerNormBackward<bf16>& p, LayerNormRowSums* row_sums,
                             float* partials) {
  const auto threads = static_cast<unsigned>(ceil_div(p.C / kVector, kWarp) * kWarp);
  if (p.C % kVector != 0 || threads > kMaxWarps * kWarp)
    throw Error(ExitCode::usage, std::to_string(p.C) + " channels are not supported on the GPU",
                "choose channels as a multiple of 8, at most 4096");
  const size_t shared = static_cast<size_t>(kRingBytes) * threads;
  CUDA_CHECK(cudaFuncSetAttribute(layernorm_backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared)));
  int resident = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, layernorm_backward_kernel,
                                                           static_cast<int>(threads), shared));
  const int64_t wanted =
      static_cast<int64_t>(cuda.multiprocessors) * max(resident, 1); // one wave: no block waits for another
  const auto blocks = static_cast<unsigned>(min(ceil_div(p.rows, kPair), wanted));
  layernorm_backward_kernel<<<blocks, threads, shared, cuda.stream>>>(p, row_sums, partials);
  CUDA_CHECK_LAUNCH("layernorm_backward");
  add_column_partials(
      cuda, {{p.dweight, p.dbias, row_sums ? nullptr : p.dbranch_bias}, 3, partials, static_cast<int>(blocks), p.C});
}

void layernorm_backward(Cuda& cuda, const LayerNormBackward<bf16>& p) {
  const Range range(cuda, "layernorm_backward", (p.accumulate ? 8.0 : 6.0) * static_cast<double>(p.rows) * p.C);
  layernorm_backward_sums(cuda, p, nullptr, cuda.scratch<float>(layernorm_backward_partials(cuda, p.C)));
}

} // namespace gpt2
