// Rows in the registers of teams of warps: lane l of a team's warp w holds vector 32 w + l of each of its rows, a few
// rows at once. One vector a lane leaves registers for rows on their way from memory and for sums over columns, and
// many rows at once share the price of a team's barrier.
#pragma once

#include <cstdint>

#include "kernels/device/vector.cuh"

namespace gpt2 {

template <int kTeam_, int kTeams_, int kRowsAtOnce_>
struct RowTeams {
  static constexpr int kTeam = kTeam_;             // warps of a team: it has rows of up to 256 kTeam channels
  static constexpr int kTeams = kTeams_;           // of a block
  static constexpr int kRowsAtOnce = kRowsAtOnce_; // of a team
  static constexpr int kThreads = kTeam * kTeams * kWarp;
  static constexpr int kStep = kTeams * kRowsAtOnce; // rows of a block at once
  static constexpr int kMostChannels = kTeam * kWarp * kVector;
  static_assert(kTeams <= 15); // each has a barrier beside the block's
};

// Places in a matrix are counted in 32 bits, rows up to those of a grid's tiles behind the last one.
inline bool places_fit(int64_t rows, int C) { return rows < INT32_MAX / 2 && rows * C < int64_t{INT32_MAX} * kVector; }

// A thread's place.
template <class Teams>
struct TeamPlace {
  int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int team = warp / Teams::kTeam, rank = warp % Teams::kTeam;
  int vector = rank * kWarp + lane;
  int first_row = team * Teams::kRowsAtOnce; // of the block's rows at once

  // Of its vector of a row, in a matrix of so many vectors a row. 64 bits would cost registers.
  __device__ uint32_t index(int row, int vectors) const {
    return static_cast<uint32_t>(row) * static_cast<uint32_t>(vectors) + static_cast<uint32_t>(vector);
  }

  __device__ void barrier() const { // of the team
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(Teams::kTeam * kWarp) : "memory");
  }
};

// In shared memory: the sums of each warp, on their way to its team.
template <class Teams, int kValues>
struct TeamExchange {
  struct alignas(kValues * sizeof(float)) OfWarp {
    float values[kValues];
  };
  OfWarp sums[Teams::kTeams][Teams::kTeam];

  // Every value becomes its sum over the team, in a fixed order. Between two calls with one exchange there must be a
  // call with another: its barrier says that the first's sums have been read.
  __device__ void add_up(const TeamPlace<Teams>& place, float (&values)[kValues]) {
    constexpr int kLanes = kWarp / kValues; // that have the same sum
    const float sum = warp_sums(values);
    if (place.lane % kLanes == 0) sums[place.team][place.rank].values[place.lane / kLanes] = sum;
    place.barrier();
#pragma unroll
    for (float& value : values) value = 0;
#pragma unroll
    for (int warp = 0; warp < Teams::kTeam; ++warp) {
      const OfWarp of_warp = sums[place.team][warp];
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] += of_warp.values[i];
    }
  }
};

} // namespace gpt2
