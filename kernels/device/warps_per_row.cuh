// N warps per row: a group of kWarpsPerRow warps holds kRowsAtOnce rows in registers. Lane l of warp w holds vector 32
// w + l of each row. One vector per lane leaves registers for rows in flight and for column sums; several rows share
// one barrier of the group.
#pragma once

#include <cstdint>

#include "kernels/device/vector.cuh"

namespace gpt2 {

template <int kWarpsPerRow_, int kGroups_, int kRowsAtOnce_>
struct RowTiling {
  static constexpr int kWarpsPerRow = kWarpsPerRow_; // rows of up to 256 kWarpsPerRow channels
  static constexpr int kGroups = kGroups_;           // groups per CTA
  static constexpr int kRowsAtOnce = kRowsAtOnce_;   // rows per group
  static constexpr int kThreads = kWarpsPerRow * kGroups * kWarp;
  static constexpr int kStep = kGroups * kRowsAtOnce; // rows per CTA and step
  static constexpr int kMaxChannels = kWarpsPerRow * kWarp * kVector;
  static_assert(kGroups <= 15, "16 named barriers: one per group, and __syncthreads()");
};

// Vector indices fit in 32 bits, also for the rows of a tile beyond the last row.
inline bool indices_fit_in_32_bits(int64_t rows, int C) {
  return rows < INT32_MAX / 2 && rows * C < int64_t{INT32_MAX} * kVector;
}

// Position of a thread.
template <class Tiling>
struct RowThread {
  int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int group = warp / Tiling::kWarpsPerRow, warp_in_group = warp % Tiling::kWarpsPerRow;
  int vector = warp_in_group * kWarp + lane;
  int first_row = group * Tiling::kRowsAtOnce; // in a step of the CTA

  // Index of the thread's vector in a matrix with `vectors` per row. 64 bits would cost registers.
  __device__ uint32_t index(int row, int vectors) const {
    return static_cast<uint32_t>(row) * static_cast<uint32_t>(vectors) + static_cast<uint32_t>(vector);
  }

  __device__ void barrier() const { // of the group
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(Tiling::kWarpsPerRow * kWarp) : "memory");
  }
};

// Shared memory for sums over a group.
template <class Tiling, int kValues>
struct RowReduction {
  struct alignas(kValues * sizeof(float)) WarpSums {
    float values[kValues];
  };
  WarpSums sums[Tiling::kGroups][Tiling::kWarpsPerRow];

  // Sums each value over the group, in a fixed order. Alternate two RowReductions: the barrier of one call protects the
  // sums of the previous one.
  __device__ void allreduce(const RowThread<Tiling>& thread, float (&values)[kValues]) {
    constexpr int kLanes = kWarp / kValues; // lanes with the same sum
    const float sum = warp_sums(values);
    if (thread.lane % kLanes == 0) sums[thread.group][thread.warp_in_group].values[thread.lane / kLanes] = sum;
    thread.barrier();
#pragma unroll
    for (float& value : values) value = 0;
#pragma unroll
    for (int warp = 0; warp < Tiling::kWarpsPerRow; ++warp) {
      const WarpSums warp_sums_in_group = sums[thread.group][warp];
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] += warp_sums_in_group.values[i];
    }
  }
};

} // namespace gpt2
