// What products with an epilogue of their own have in common (gemm_weight_stationary.cuh, gemm_pingpong.cuh): one
// warpgroup copies, the others multiply tiles in turn, so that one multiplies while the others are in their epilogues.
// A turn ends when all pieces of a tile have come: a barrier tells a round from the next by parity alone, so nobody may
// wait for one before the rounds up to it are over. What an epilogue reads besides comes to a pipeline of its
// warpgroup, by a thread of its own.
//
// Both operands are put into shared memory in an order of rows that suits the epilogue. Of a tile's 16 rows the even
// ones come first: rows r and r + 8 of the accumulators, which one thread holds, are then neighbours, and their codes
// together make the 16-bit elements that stmatrix transposes. Of 4 R weight rows, number R q + 2 j + e comes to
// 8 j + 2 q + e: a thread's accumulators are then runs of R neighbouring columns, 8 of them or 16.
#pragma once

#include "kernels/device/vector.cuh"
#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/warp_specialized.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace gpt2::sm90 {

constexpr int kBlockK = 128; // of K

// Where a thread's accumulators of one tile belong. Its rows are `row` and the one after; of each 4 * kContiguous
// columns it owns kContiguous neighbours, as vectors of 8.
template <int kContiguous>
struct AccumulatorLayout {
  static_assert(kContiguous == kVector || kContiguous == 2 * kVector);
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int quad = lane % 4;
  int row = 16 * warp + 2 * (lane / 4);

  __device__ int column(int vector) const { // its first
    constexpr int kVectors = kContiguous / kVector;
    return vector / kVectors * 4 * kContiguous + quad * kContiguous + vector % kVectors * kVector;
  }

  // Element k of the 8 in `vector`, in the row after `row` if `next`.
  __device__ static constexpr int accumulator(int vector, int k, int next) {
    return (vector * 4 + k / 2) * 4 + 2 * next + k % 2;
  }
};

// Both operands as boxes of so many rows and a piece of K, in the order above.
inline CUtensorMap in_map(const uint8_t* in, int64_t K, int64_t rows, int box_rows) {
  return make_tensor_map(in, {{K, 1, kBlockK}, {8, 2 * K, 8}, {2, K, 2}, {rows / 16, 16 * K, box_rows / 16}});
}
template <int kContiguous>
CUtensorMap weight_map(const uint8_t* weight, int64_t K, int width, int box_rows) {
  return make_tensor_map(weight, {{K, 1, kBlockK},
                                  {2, K, 2},
                                  {4, kContiguous * K, 4},
                                  {kContiguous / 2, 2 * K, kContiguous / 2},
                                  {width / (4 * kContiguous), 4 * kContiguous * K, box_rows / (4 * kContiguous)}});
}

struct GemmOperands {
  const uint8_t* in;     // (rows, K)
  const uint8_t* weight; // (width, K)
  int64_t rows;          // what these are multiples of: can_implement_weight_stationary(), can_implement_pingpong()
  int width;
};

// What an epilogue reads besides its accumulators: the pipeline of its warpgroup.
template <int kStages, int kBytes>
struct EpilogueLoadPipeline {
  uint8_t* bytes; // (stages, kBytes)
  ClusterTransactionBarrier *full, *empty;
  PipelineState<kStages> state;

  __device__ uint8_t* stage() const { return bytes + state.index * kBytes; }
  __device__ const uint8_t* wait() {
    full[state.index].wait(state.phase);
    return stage();
  }
  __device__ void release() {  // by the whole warp
    fence_view_async_shared(); // what it has read is overwritten by a copy
    __syncwarp();
    if (threadIdx.x % kWarp == 0) empty[state.index].arrive();
    state.advance();
  }
};

// Those of all warpgroups that multiply, one behind the other.
template <int kConsumers, int kStages, int kBytes>
struct EpilogueLoadPipelines {
  using Pipeline = EpilogueLoadPipeline<kStages, kBytes>;
  static constexpr int kPipelineBytes = kStages * kBytes;
  static constexpr int kBarriers = kConsumers * 2 * kStages; // of each, full and empty
  uint8_t* bytes;
  ClusterTransactionBarrier* barriers;

  __device__ Pipeline of(int consumer) const {
    ClusterTransactionBarrier* const own = barriers + 2 * kStages * consumer;
    return {bytes + consumer * kPipelineBytes, own, own + kStages, {}};
  }
  __device__ void init() const { // by one thread
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      const Pipeline pipeline = of(consumer);
      for (int stage = 0; stage < kStages; ++stage) {
        pipeline.full[stage].init(1);
        pipeline.empty[stage].init(kWarpgroup / kWarp);
      }
    }
  }
};

// The inputs of a tile's epilogue, by the one thread that copies for its warpgroup.
template <class Epilogue, class Pipeline>
__device__ inline void producer_load_inputs(Pipeline& pipeline, const typename Epilogue::Arguments& arguments,
                                            int column0, int64_t row0) {
  for (int index = 0; index < Epilogue::kLoads; ++index) {
    pipeline.empty[pipeline.state.index].wait(pipeline.state.phase ^ 1); // the first round finds them so
    ClusterTransactionBarrier& ready = pipeline.full[pipeline.state.index];
    ready.arrive_and_expect_tx(Epilogue::kLoadBytes);
    Epilogue::producer_load(arguments, pipeline.stage(), ready, column0, row0, index);
    pipeline.state.advance();
  }
}

// Epilogue: what a kernel does with its accumulators.
//   struct Arguments;                         copied to the device
//   static constexpr int kBlockN, kContiguous;        columns of a tile, and neighbours among them that a thread owns
//   static constexpr int kConsumers;          warpgroups that multiply in a stationary product; two in a tiled one
//   static constexpr int kStagingBytes;       shared memory of each warpgroup
//   static constexpr int kLoadBytes, kLoads;  of each input of a tile, and how many there are; 0: none
//   static void producer_load(const Arguments&, uint8_t* to, ClusterTransactionBarrier& full, int column0, int64_t
//   row0, int index); Epilogue(const Arguments&, uint8_t* staging, int warpgroup); void fetch(int column0); loads that
//   the next begin() needs void begin(int column0, int slot);        the columns of the tiles that follow; nobody else
//   has both void prepare(int64_t row0);               loads that may be under way while the tile multiplies; not in a
//   tiled one void finish_tile(float (&accumulators)[kBlockN / 2], int64_t row0, EpilogueLoadPipeline&); void end(); of
//   those columns void finish();                            after the last tile

} // namespace gpt2::sm90
