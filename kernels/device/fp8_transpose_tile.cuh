// Transposes FP8 rows through shared memory: rows collect in a tile, columns leave in runs of 16 rows.
#pragma once

#include "kernels/device/fp8.cuh"

namespace gpt2 {

// Vectors of 8 bytes are swizzled by the row's group of 16: neighboring threads read the same columns of different
// groups.
struct Fp8TransposeTile {
  static constexpr int kGroupRows = 16;    // rows of a column that a thread gathers
  static constexpr int kOtherBytes = 1024; // shared memory that a kernel needs beside its tiles

  uint8_t* bytes;
  int pitch; // bytes between rows

  __host__ __device__ static constexpr int pitch_for(int C) { return (C + 63) / 64 * 64; }

  __device__ uint2* at(int row, int vector) const {
    return reinterpret_cast<uint2*>(bytes + row * pitch) + (vector ^ (row / kGroupRows & 7));
  }

  // Divides the tile's groups and vectors among the threads; neighbors take groups of the same vector.
  template <int kRowGroups, int kThreads>
  __device__ static void for_each_group(int vectors, auto&& visit) {
    for (int task = static_cast<int>(threadIdx.x); task < kRowGroups * vectors; task += kThreads)
      visit(task % kRowGroups, task / kRowGroups);
  }

  // Writes 16 rows of 8 columns, transposed, to out (C, rows) at column `row0`.
  __device__ void write_transposed(uint8_t* out, int64_t rows, int64_t row0, int group, int vector) const {
    const auto* from = reinterpret_cast<const uint8_t*>(at(group * kGroupRows, vector));
    uint2 upper[8], lower[8];
#pragma unroll
    for (int r = 0; r < 8; ++r, from += pitch) upper[r] = *reinterpret_cast<const uint2*>(from);
#pragma unroll
    for (int r = 0; r < 8; ++r, from += pitch) lower[r] = *reinterpret_cast<const uint2*>(from);
    transpose_8x8(upper);
    transpose_8x8(lower);
    uint8_t* column = out + static_cast<int64_t>(vector) * kVector * rows + row0 + group * kGroupRows;
#pragma unroll
    for (int j = 0; j < kVector; ++j, column += rows)
      *reinterpret_cast<uint4*>(column) = make_uint4(upper[j].x, upper[j].y, lower[j].x, lower[j].y);
  }
};

} // namespace gpt2
