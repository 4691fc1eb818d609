// What products with an epilogue of their own have in common (stationary_product.cuh, tiled_product.cuh): one warpgroup
// copies, the others multiply tiles in turn, so that one multiplies while the others are in their epilogues. A turn
// ends when all pieces of a tile have come: a barrier tells a round from the next by parity alone, so nobody may wait
// for one before the rounds up to it are over. What an epilogue reads besides comes to a ring of its warpgroup, by a
// thread of its own.
//
// Both operands are put into shared memory in an order of rows that suits the epilogue. Of a tile's 16 rows the even
// ones come first: rows r and r + 8 of the accumulators, which one thread holds, are then neighbours, and their codes
// together make the 16-bit elements that stmatrix transposes. Of 4 R weight rows, number R q + 2 j + e comes to
// 8 j + 2 q + e: a thread's accumulators are then runs of R neighbouring columns, 8 of them or 16.
#pragma once

#include "kernels/device/vector.cuh"
#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/warpgroups.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace gpt2::sm90 {

constexpr int kPieceBytes = 128; // of K

// Where a thread's accumulators of one tile belong. Its rows are `row` and the one after; of each 4 * kRun columns it
// owns kRun neighbours, as vectors of 8.
template <int kRun>
struct Ownership {
  static_assert(kRun == kVector || kRun == 2 * kVector);
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int quad = lane % 4;
  int row = 16 * warp + 2 * (lane / 4);

  __device__ int column(int vector) const { // its first
    constexpr int kVectors = kRun / kVector;
    return vector / kVectors * 4 * kRun + quad * kRun + vector % kVectors * kVector;
  }

  // Element k of the 8 in `vector`, in the row after `row` if `next`.
  __device__ static constexpr int accumulator(int vector, int k, int next) {
    return (vector * 4 + k / 2) * 4 + 2 * next + k % 2;
  }
};

// Both operands as boxes of so many rows and a piece of K, in the order above.
inline CUtensorMap in_map(const uint8_t* in, int64_t K, int64_t rows, int box_rows) {
  return make_tensor_map(in, {{K, 1, kPieceBytes}, {8, 2 * K, 8}, {2, K, 2}, {rows / 16, 16 * K, box_rows / 16}});
}
template <int kRun>
CUtensorMap weight_map(const uint8_t* weight, int64_t K, int width, int box_rows) {
  return make_tensor_map(weight, {{K, 1, kPieceBytes},
                                  {2, K, 2},
                                  {4, kRun * K, 4},
                                  {kRun / 2, 2 * K, kRun / 2},
                                  {width / (4 * kRun), 4 * kRun * K, box_rows / (4 * kRun)}});
}

struct ProductOperands {
  const uint8_t* in;     // (rows, K)
  const uint8_t* weight; // (width, K)
  int64_t rows;          // what these are multiples of: takes_stationary(), takes_tiled()
  int width;
};

// What an epilogue reads besides its accumulators: the ring of its warpgroup.
template <int kStages, int kBytes>
struct InputRing {
  uint8_t* bytes; // (stages, kBytes)
  Barrier *full, *empty;
  RingPosition<kStages> at;

  __device__ uint8_t* stage() const { return bytes + at.stage * kBytes; }
  __device__ const uint8_t* wait() {
    full[at.stage].wait(at.parity);
    return stage();
  }
  __device__ void release() { // by the whole warp
    fence_for_copies();       // what it has read is overwritten by a copy
    __syncwarp();
    if (threadIdx.x % kWarp == 0) empty[at.stage].arrive();
    at.advance();
  }
};

// Those of all warpgroups that multiply, one behind the other.
template <int kConsumers, int kStages, int kBytes>
struct InputRings {
  using Ring = InputRing<kStages, kBytes>;
  static constexpr int kRingBytes = kStages * kBytes;
  static constexpr int kBarriers = kConsumers * 2 * kStages; // of each, full and empty
  uint8_t* bytes;
  Barrier* barriers;

  __device__ Ring of(int consumer) const {
    Barrier* const own = barriers + 2 * kStages * consumer;
    return {bytes + consumer * kRingBytes, own, own + kStages, {}};
  }
  __device__ void init() const { // by one thread
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      const Ring ring = of(consumer);
      for (int stage = 0; stage < kStages; ++stage) {
        ring.full[stage].init(1);
        ring.empty[stage].init(kWarpgroup / kWarp);
      }
    }
  }
};

// The inputs of a tile's epilogue, by the one thread that copies for its warpgroup.
template <class Epilogue, class Ring>
__device__ inline void copy_inputs(Ring& ring, const typename Epilogue::Arguments& arguments, int column0,
                                   int64_t row0) {
  for (int index = 0; index < Epilogue::kInputs; ++index) {
    ring.empty[ring.at.stage].wait(ring.at.parity ^ 1); // the first round finds them so
    Barrier& ready = ring.full[ring.at.stage];
    ready.expect_bytes(Epilogue::kInputBytes);
    Epilogue::load_input(arguments, ring.stage(), ready, column0, row0, index);
    ring.at.advance();
  }
}

// Epilogue: what a kernel does with its accumulators.
//   struct Arguments;                         copied to the device
//   static constexpr int kPanel, kRun;        columns of a tile, and neighbours among them that a thread owns
//   static constexpr int kConsumers;          warpgroups that multiply in a stationary product; two in a tiled one
//   static constexpr int kStagingBytes;       shared memory of each warpgroup
//   static constexpr int kInputBytes, kInputs;  of each input of a tile, and how many there are; 0: none
//   static void load_input(const Arguments&, uint8_t* to, Barrier& full, int column0, int64_t row0, int index);
//   Epilogue(const Arguments&, uint8_t* staging, int warpgroup);
//   void fetch(int column0);                  loads that the next begin() needs
//   void begin(int column0, int slot);        the columns of the tiles that follow; nobody else has both
//   void prepare(int64_t row0);               loads that may be under way while the tile multiplies; not in a tiled one
//   void finish_tile(float (&accumulators)[kPanel / 2], int64_t row0, InputRing&);
//   void end();                               of those columns
//   void finish();                            after the last tile

} // namespace gpt2::sm90
