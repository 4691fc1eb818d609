// All three are bound by memory.
#include "kernels/ranks.h"

#include <cuda_bf16.h>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/fp8_tile.cuh"

namespace gpt2 {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) sum_parts_kernel(SumParts p) {
  const int64_t vectors = p.count / kVector, i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  Float8 sum = load8(p.parts, i);
  for (int rank = 1; rank < p.ranks; ++rank) {
    const Float8 part = load8(p.parts, rank * vectors + i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum.v[k] += part.v[k];
  }
  float4* const out = reinterpret_cast<float4*>(p.out) + 2 * i;
  out[0] = make_float4(sum.v[0], sum.v[1], sum.v[2], sum.v[3]);
  out[1] = make_float4(sum.v[4], sum.v[5], sum.v[6], sum.v[7]);
}

template <class T>
__global__ void __launch_bounds__(kThreads) copy_pieces_kernel(CopyPieces<T> p) {
  const Piece piece = p.pieces[blockIdx.y];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < piece.count) p.out[piece.to + i] = static_cast<T>(p.in[piece.from + i]);
}

template <class T>
void launch_copy(Cuda& cuda, const CopyPieces<T>& p) {
  if (p.count == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.longest, kThreads)), static_cast<unsigned>(p.count));
  copy_pieces_kernel<<<grid, kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("copy_pieces");
}

// The tile of fp8_tile.cuh without its arithmetic: 64-byte rows in, 128-byte rows out.
__global__ void __launch_bounds__(kTileThreads) transpose_fp8_kernel(TransposeFp8 p) {
  __shared__ TransposedTile tile;
  const int col_group = threadIdx.x % 8, row_group = threadIdx.x / 8;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTileRows, first_row = row0 + row_group * 8;
  const int col0 = blockIdx.x * kTileCols, col = col0 + col_group * 8;
  uint2 codes[8] = {};
  if (first_row < p.rows && col < p.cols) {
#pragma unroll
    for (int i = 0; i < 8; ++i) codes[i] = *reinterpret_cast<const uint2*>(p.in + (first_row + i) * p.cols + col);
  }
  tile.put(row_group, col_group, codes);
  __syncthreads();
  tile.write(p.out, row0, col0, p.rows, p.cols);
}

} // namespace

void sum_parts(Cuda& cuda, const SumParts& p) {
  const Range range(cuda, "sum_parts", (2.0 * p.ranks + 4.0) * static_cast<double>(p.count));
  const Requirements require("sum_parts");
  require(p.count % kVector == 0, "count is a multiple of 8");
  sum_parts_kernel<<<static_cast<unsigned>(ceil_div(p.count / kVector, kThreads)), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("sum_parts");
}

void copy_pieces(Cuda& cuda, const CopyPieces<float>& p) { launch_copy(cuda, p); }
void copy_pieces(Cuda& cuda, const CopyPieces<bf16>& p) { launch_copy(cuda, p); }

void transpose_fp8(Cuda& cuda, const TransposeFp8& p) {
  const Range range(cuda, "transpose_fp8", 2.0 * static_cast<double>(p.rows) * p.cols);
  const Requirements require("transpose_fp8");
  require(p.rows % 16 == 0, "rows is a multiple of 16");
  require(p.cols % 16 == 0, "cols is a multiple of 16");
  const dim3 grid(static_cast<unsigned>(ceil_div(p.cols, kTileCols)),
                  static_cast<unsigned>(ceil_div(p.rows, kTileRows)));
  transpose_fp8_kernel<<<grid, kTileThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("transpose_fp8");
}

} // namespace gpt2
