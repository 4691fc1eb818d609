// Common parts of the FP8 GEMMs with fused epilogues (gemm_weight_stationary.cuh, gemm_pingpong.cuh). Consumer
// warpgroups run in ping-pong: one issues wgmma while the others are in their epilogues. A warpgroup passes the
// ping-pong barrier on only when all k-blocks of its tile have arrived: mbarriers distinguish rounds by parity alone,
// so no warpgroup may wait for a stage more than one round ahead. Tensors that an epilogue reads arrive through a TMA
// pipeline per consumer warpgroup, loaded by its own producer thread.
//
// TMA permutes the rows of both operands for the epilogue. Of each 16 rows of `in` the even ones come first: rows r and
// r + 8 of an accumulator, which one thread holds, are then neighbors, and their FP8 bytes form the 16-bit elements
// that stmatrix transposes. Of each 4 R weight rows, row R q + 2 j + e goes to 8 j + 2 q + e: a thread then holds R
// contiguous columns, 8 or 16.
#pragma once

#include "kernels/device/vector.cuh"
#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/warp_specialized.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace gpt2::sm90 {

constexpr int kBlockK = 128; // bytes, and FP8 values, of a k-block: one swizzled row

// Which elements of a 64-row tile a thread holds: rows `row` and `row` + 1, and kContiguous of each 4 * kContiguous
// columns, as vectors of 8.
template <int kContiguous>
struct AccumulatorLayout {
  static_assert(kContiguous == kVector || kContiguous == 2 * kVector);
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int quad = lane % 4;
  int row = 16 * warp + 2 * (lane / 4);

  __device__ int column(int vector) const { // first column of the vector
    constexpr int kVectors = kContiguous / kVector;
    return vector / kVectors * 4 * kContiguous + quad * kContiguous + vector % kVectors * kVector;
  }

  // Accumulator index of element k of `vector`, in row `row` + next.
  __device__ static constexpr int accumulator(int vector, int k, int next) {
    return (vector * 4 + k / 2) * 4 + 2 * next + k % 2;
  }
};

// Tensor maps of both operands in the row order above; a tile is box_rows x one k-block.
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
  int64_t rows;          // multiples as can_implement_weight_stationary(), can_implement_pingpong() require
  int width;
};

// TMA pipeline for the tensors that the epilogue of one consumer warpgroup reads.
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
  __device__ void release() {  // called by all threads of a warp
    fence_view_async_shared(); // the next TMA load overwrites what these threads have read
    __syncwarp();
    if (threadIdx.x % kWarp == 0) empty[state.index].arrive();
    state.advance();
  }
};

// The pipelines of all consumer warpgroups, consecutive in shared memory.
template <int kConsumers, int kStages, int kBytes>
struct EpilogueLoadPipelines {
  using Pipeline = EpilogueLoadPipeline<kStages, kBytes>;
  static constexpr int kPipelineBytes = kStages * kBytes;
  static constexpr int kBarriers = kConsumers * 2 * kStages; // full and empty
  uint8_t* bytes;
  ClusterTransactionBarrier* barriers;

  __device__ Pipeline of(int consumer) const {
    ClusterTransactionBarrier* const own = barriers + 2 * kStages * consumer;
    return {bytes + consumer * kPipelineBytes, own, own + kStages, {}};
  }
  __device__ void init() const { // called by one thread
    for (int consumer = 0; consumer < kConsumers; ++consumer) {
      const Pipeline pipeline = of(consumer);
      for (int stage = 0; stage < kStages; ++stage) {
        pipeline.full[stage].init(1);
        pipeline.empty[stage].init(kWarpgroup / kWarp);
      }
    }
  }
};

// Shared memory of a CTA: the weight tile if it stays, pipeline stages, epilogue inputs, epilogue staging, mbarriers.
template <class Shape, class Epilogue>
struct GemmStorage {
  using Inputs = EpilogueLoadPipelines<Shape::kConsumers, Shape::kLoadStages, Epilogue::kLoadBytes>;
  static constexpr int kStages = Shape::kStages;
  static constexpr bool kKeepsWeights = Shape::kWeightBytes > 0;
  static_assert((2 * kStages + kKeepsWeights + Inputs::kBarriers) * sizeof(ClusterTransactionBarrier) <= kBarrierBytes);
  uint8_t *weights, *stages, *staging;
  ClusterTransactionBarrier *full, *empty, *weights_full; // (stages), (stages), (1)
  Inputs inputs;

  __device__ explicit GemmStorage(uint8_t* dynamic) {
    weights = dynamic + (-cast_smem_ptr_to_uint(dynamic) & (kAlignment - 1));
    stages = weights + Shape::kWeightBytes;
    inputs.bytes = stages + kStages * Shape::kStageBytes;
    staging = inputs.bytes + Shape::kConsumers * Inputs::kPipelineBytes;
    full = reinterpret_cast<ClusterTransactionBarrier*>(staging + Shape::kConsumers * Epilogue::kStagingBytes);
    empty = full + kStages;
    weights_full = empty + kStages;
    inputs.barriers = weights_full + kKeepsWeights;
  }

  __device__ void init_barriers() const {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        full[stage].init(1);
        empty[stage].init(Shape::kReaders * kWarpgroup / kWarp); // one consumer warpgroup of each reader
      }
      if constexpr (kKeepsWeights) weights_full->init(1);
      if constexpr (Epilogue::kLoads > 0) inputs.init();
      fence_barrier_init();
    }
    cluster_sync();
  }
};

// Producer side: all loads of one tile's epilogue.
template <class Epilogue, class Pipeline>
__device__ inline void producer_load_inputs(Pipeline& pipeline, const typename Epilogue::Arguments& arguments,
                                            int column0, int64_t row0) {
  for (int index = 0; index < Epilogue::kLoads; ++index) {
    pipeline.empty[pipeline.state.index].wait(pipeline.state.phase ^ 1); // passes at once in the first round
    ClusterTransactionBarrier& ready = pipeline.full[pipeline.state.index];
    ready.arrive_and_expect_tx(Epilogue::kLoadBytes);
    Epilogue::producer_load(arguments, pipeline.stage(), ready, column0, row0, index);
    pipeline.state.advance();
  }
}

// Concept Epilogue:
// clang-format off
//   struct Arguments;                                    passed as a __grid_constant__
//   static constexpr int kBlockN, kContiguous;           tile columns; contiguous columns per thread (8 or 16)
//   static constexpr int kConsumers;                     consumer warpgroups (weight-stationary; ping-pong has 2)
//   static constexpr int kStagingBytes;                  shared memory per consumer warpgroup
//   static constexpr int kLoadBytes, kLoads;             bytes of one TMA load stage, stages per tile; 0: none
//   static void producer_load(const Arguments&, uint8_t* to, ClusterTransactionBarrier& full, int column0,
//                             int64_t row0, int index);
//   Epilogue(const Arguments&, uint8_t* staging, int consumer);
//   void fetch(int column0);                             global loads for the next begin()
//   void begin(int column0, int slot);                   first column of the next tiles; slot is unique per column0
//   void prepare(int64_t row0);                          global loads that overlap wgmma (weight-stationary only)
//   void finish_tile(float (&accumulators)[kBlockN / 2], int64_t row0, EpilogueLoadPipeline&);
//   void end();                                          after the last tile of these columns
//   void finish();                                       after the last tile of the CTA
// clang-format on

} // namespace gpt2::sm90
