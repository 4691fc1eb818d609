// Rows in the registers of teams of warps: lane l of a team's warp w holds vector 32 w + l of each of its rows, a few
// rows at once. One vector a lane leaves registers for rows on their way from memory and for sums over columns, and
// many rows at once share the price of a team's barrier.
#pragma once

#include <cstdint>

#include "kernels/device/vector.cuh"

namespace gpt2 {

template <int kWarpsPerRow_, int kGroups_, int kRowsAtOnce_>
struct RowTiling {
  static constexpr int kWarpsPerRow = kWarpsPerRow_; // warps of a team: it has rows of up to 256 kWarpsPerRow channels
  static constexpr int kGroups = kGroups_;           // of a block
  static constexpr int kRowsAtOnce = kRowsAtOnce_;   // of a team
  static constexpr int kThreads = kWarpsPerRow * kGroups * kWarp;
  static constexpr int kStep = kGroups * kRowsAtOnce; // rows of a block at once
  static constexpr int kMaxChannels = kWarpsPerRow * kWarp * kVector;
  static_assert(kGroups <= 15); // each has a barrier beside the block's
};

// Places in a matrix are counted in 32 bits, rows up to those of a grid's tiles behind the last one.
inline bool indices_fit_in_32_bits(int64_t rows, int C) {
  return rows < INT32_MAX / 2 && rows * C < int64_t{INT32_MAX} * kVector;
}

// A thread's thread.
template <class Tiling>
struct RowThread {
  int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int group = warp / Tiling::kWarpsPerRow, warp_in_group = warp % Tiling::kWarpsPerRow;
  int vector = warp_in_group * kWarp + lane;
  int first_row = group * Tiling::kRowsAtOnce; // of the block's rows at once

  // Of its vector of a row, in a matrix of so many vectors a row. 64 bits would cost registers.
  __device__ uint32_t index(int row, int vectors) const {
    return static_cast<uint32_t>(row) * static_cast<uint32_t>(vectors) + static_cast<uint32_t>(vector);
  }

  __device__ void barrier() const { // of the team
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(Tiling::kWarpsPerRow * kWarp) : "memory");
  }
};

// In shared memory: the sums of each warp, on their way to its team.
template <class Tiling, int kValues>
struct RowReduction {
  struct alignas(kValues * sizeof(float)) WarpSums {
    float values[kValues];
  };
  WarpSums sums[Tiling::kGroups][Tiling::kWarpsPerRow];

  // Every value becomes its sum over the team, in a fixed order. Between two calls with one exchange there must be a
  // call with another: its barrier says that the first's sums have been read.
  __device__ void allreduce(const RowThread<Tiling>& thread, float (&values)[kValues]) {
    constexpr int kLanes = kWarp / kValues; // that have the same sum
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
