// All three are bound by memory.
#include "kernels/ranks.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/cast_transpose.cuh"

namespace gpt2 {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) sum_over_ranks_kernel(SumOverRanks p) {
  const int64_t vectors = p.count / kVector, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  Float8 sum = load8(p.parts, i);
  for (int rank = 1; rank < p.ranks; ++rank) sum += load8(p.parts, rank * vectors + i);
  store8(p.out, i, sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads) copy_segments_kernel(CopySegments<T> p) {
  const Segment segment = p.segments[blockIdx.y];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < segment.count) p.out[segment.to + i] = static_cast<T>(p.in[segment.from + i]);
}

template <class T>
void launch_copy(CudaStream& cuda, const CopySegments<T>& p) {
  if (p.count == 0) return;
  const dim3 grid(grid_size(p.longest, kThreads), static_cast<unsigned>(p.count));
  copy_segments_kernel<<<grid, kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("copy_segments");
}

// The tile of cast_transpose.cuh without arithmetic: 64-byte rows in, 128-byte rows out.
__global__ void __launch_bounds__(kCastThreads) transpose_fp8_kernel(TransposeFp8 p) {
  __shared__ TransposedTile tile;
  const int col_group = threadIdx.x % 8, row_group = threadIdx.x / 8;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kCastRows, first_row = row0 + row_group * 8;
  const int col0 = blockIdx.x * kCastCols, col = col0 + col_group * 8;
  uint2 bytes_8x8[8] = {};
  if (first_row < p.rows && col < p.cols) {
#pragma unroll
    for (int i = 0; i < 8; ++i) bytes_8x8[i] = *reinterpret_cast<const uint2*>(p.in + (first_row + i) * p.cols + col);
  }
  tile.put(row_group, col_group, bytes_8x8);
  __syncthreads();
  tile.write(p.out, row0, col0, p.rows, p.cols);
}

} // namespace

void sum_over_ranks(CudaStream& cuda, const SumOverRanks& p) {
  const NvtxRange range(cuda, "sum_over_ranks", (2.0 * p.ranks + 4.0) * static_cast<double>(p.count));
  const Requirements require("sum_over_ranks");
  require(p.count % kVector == 0, "count is a multiple of 8");
  sum_over_ranks_kernel<<<grid_size(p.count / kVector, kThreads), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("sum_over_ranks");
}

void copy_segments(CudaStream& cuda, const CopySegments<float>& p) { launch_copy(cuda, p); }
void copy_segments(CudaStream& cuda, const CopySegments<bf16>& p) { launch_copy(cuda, p); }

void transpose_fp8(CudaStream& cuda, const TransposeFp8& p) {
  const NvtxRange range(cuda, "transpose_fp8", 2.0 * static_cast<double>(p.rows) * p.cols);
  const Requirements require("transpose_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.cols % 16 == 0, "cols is a multiple of 16");
  const dim3 grid(grid_size(p.cols, kCastCols), grid_size(p.rows, kCastRows));
  transpose_fp8_kernel<<<grid, kCastThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("transpose_fp8");
}

} // namespace gpt2
