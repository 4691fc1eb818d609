// Fused elementwise operation, FP8 cast and transpose of a (rows, cols) matrix. A CTA takes a tile of 128 x 64, a
// thread 8 x 8 of it: global loads are 128 contiguous bytes per row, FP8 stores 64 bytes per row, and the transpose,
// built in registers and exchanged through shared memory, 128 bytes per row.
#pragma once

#include <type_traits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/split_reduction.h"
#include "kernels/device/fp8.cuh"

namespace gpt2 {

constexpr int kCastRows = 128, kCastCols = 64, kCastThreads = 128;

// A transposed tile in shared memory: 64 columns of 128 bytes. 16-byte chunks are swizzled by the column group: neither
// the 8-byte stores of a warp nor its 16-byte loads have bank conflicts.
struct TransposedTile {
  alignas(16) uint8_t bytes[kCastCols * kCastRows];

  __device__ uint8_t* chunk(int col, int index) { return bytes + col * kCastRows + ((index ^ (col / 8 & 7)) * 16); }

  // The thread's 8 x 8 bytes: columns from 8 col_group, rows from 8 row_group.
  __device__ void put(int row_group, int col_group, uint2 (&bytes_8x8)[8]) {
    transpose_8x8(bytes_8x8);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<uint2*>(chunk(col_group * 8 + j, row_group / 2) + row_group % 2 * 8) = bytes_8x8[j];
  }

  // Call after a barrier. out is (cols, rows).
  __device__ void write(uint8_t* out, int64_t row0, int col0, int64_t rows, int cols) {
#pragma unroll
    for (int i = 0; i < kCastCols * kCastRows / 16 / kCastThreads; ++i) {
      const int index = threadIdx.x + i * kCastThreads;
      const int col = index / 8, part = index % 8;
      if (col0 + col >= cols || row0 + part * 16 >= rows) continue;
      __stcs(reinterpret_cast<uint4*>(out + (col0 + col) * rows + row0 + part * 16),
             *reinterpret_cast<const uint4*>(chunk(col, part)));
    }
  }
};

// Streaming stores: these bytes are read again only after hundreds of megabytes.
struct CastTransposeOutputs {
  Fp8Output main;   // data, transposed or both
  Fp8Output second; // transposed only; null: unused
  float* partials;  // (row tiles, cols) column sums of the main values, or null
};

// Concept Work:
//   static constexpr int kRowsAtOnce;           rows with loads in flight: 8, or 4 to save registers
//   static constexpr int kBlocks;               minimum CTAs per SM: 5 leave 96 registers, 8 leave 64
//   struct Raw;                                 loads in flight, 8 columns of one row
//   Raw load(int64_t vector) const;             vector of 8 columns, index into the matrix
//   void values(const Raw&, int64_t row, int col, Float8& main, Float8& second) const;
//   uint2 encode(const Float8& main, float scale, int64_t row, int col) const;   optional: replaces the quantizer
// rows and cols are multiples of 16, so that a thread's 8 x 8 lie inside the matrix or outside.
template <class Work, bool WithSecond>
__global__ void __launch_bounds__(kCastThreads, Work::kBlocks)
    cast_transpose_kernel(Work work, CastTransposeOutputs outputs, int64_t rows, int cols) {
  __shared__ TransposedTile main_tile;
  __shared__ std::conditional_t<WithSecond, TransposedTile, char> second_tile;
  __shared__ float column_sums[kCastThreads / kWarp][kCastCols];
  const int col_group = threadIdx.x % 8, row_group = threadIdx.x / 8;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kCastRows;
  const int col0 = blockIdx.x * kCastCols;
  const int64_t first_row = row0 + row_group * 8;
  const int col = col0 + col_group * 8, vectors = cols / kVector;
  const int64_t first_vector = first_row * vectors + col / kVector;
  Fp8Quantizer main_quantizer(outputs.main), second_quantizer(outputs.second);

  uint2 main_bytes[8] = {}, second_bytes[8] = {};
  Float8 sum{};
  if (first_row < rows && col < cols) {
#pragma unroll
    for (int half = 0; half < 8; half += Work::kRowsAtOnce) {
      typename Work::Raw raw[Work::kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < Work::kRowsAtOnce; ++i) raw[i] = work.load(first_vector + (half + i) * vectors);
#pragma unroll
      for (int i = 0; i < Work::kRowsAtOnce; ++i) {
        const int64_t row = first_row + half + i, vector = first_vector + (half + i) * vectors;
        Float8 main, second;
        work.values(raw[i], row, col, main, second);
        if constexpr (requires { &Work::encode; }) {
          main_bytes[half + i] = work.encode(main, outputs.main.meta->scale, row, col);
        } else {
          main_bytes[half + i] = main_quantizer(main);
        }
        if (WithSecond) second_bytes[half + i] = second_quantizer(second);
        if (outputs.partials) sum += main;
        if (outputs.main.data && !outputs.main.amax_only())
          __stcs(reinterpret_cast<uint2*>(outputs.main.data) + vector, main_bytes[half + i]);
      }
    }
  }
  main_quantizer.commit(outputs.main);
  if (outputs.main.amax_only()) return;
  if (WithSecond) second_quantizer.commit(outputs.second);

  if (outputs.main.transposed) main_tile.put(row_group, col_group, main_bytes);
  if constexpr (WithSecond) second_tile.put(row_group, col_group, second_bytes);
  if (outputs.partials) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) { // sum over the warp's four row groups
      sum.v[k] += __shfl_xor_sync(0xFFFFFFFFu, sum.v[k], 8);
      sum.v[k] += __shfl_xor_sync(0xFFFFFFFFu, sum.v[k], 16);
      if (threadIdx.x % kWarp < 8) column_sums[threadIdx.x / kWarp][col_group * 8 + k] = sum.v[k];
    }
  }
  __syncthreads();
  if (outputs.main.transposed) main_tile.write(outputs.main.transposed, row0, col0, rows, cols);
  if constexpr (WithSecond) second_tile.write(outputs.second.transposed, row0, col0, rows, cols);
  if (outputs.partials && threadIdx.x < kCastCols && col0 + static_cast<int>(threadIdx.x) < cols) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kCastThreads / kWarp; ++w) total += column_sums[w][threadIdx.x];
    outputs.partials[static_cast<int64_t>(blockIdx.y) * cols + col0 + threadIdx.x] = total;
  }
}

struct CastTranspose {
  Fp8Output main, second;
  float* dbias = nullptr; // (cols) += column sums of the main values
  int64_t rows;
  int cols;
};

template <class Work>
void cast_transpose(CudaStream& cuda, const Work& work, const CastTranspose& p, const char* name) {
  const dim3 grid(grid_size(p.cols, kCastCols), grid_size(p.rows, kCastRows));
  const bool amax_only = p.main.amax_only(); // writes main's amax only
  CastTransposeOutputs outputs{p.main, p.second, nullptr};
  if (p.dbias && !amax_only) outputs.partials = cuda.scratch<float>(static_cast<size_t>(grid.y) * p.cols);
  if (p.second.transposed && !amax_only) {
    cast_transpose_kernel<Work, true><<<grid, kCastThreads, 0, cuda.stream>>>(work, outputs, p.rows, p.cols);
  } else {
    cast_transpose_kernel<Work, false><<<grid, kCastThreads, 0, cuda.stream>>>(work, outputs, p.rows, p.cols);
  }
  CUDA_CHECK_LAUNCH(name);
  if (outputs.partials) add_column_partials(cuda, {{p.dbias}, 1, outputs.partials, static_cast<int>(grid.y), p.cols});
}

} // namespace gpt2
