// An FP8 product whose epilogue runs beside it: D (rows, width) = in (rows, K) weight (width, K)^T for K up to 1280.
//
// A block keeps a panel of the weight in shared memory for good, and walks over tiles of 64 rows. One thread copies the
// tiles' K in pieces of 128 bytes into a ring; two or three warpgroups take tiles in turn. A pair of blocks with the
// same rows shares its copies.
//
//   shared memory   weight (K / 128, panel, 128)   147 KB for 192 x 768
//                   ring (stages, 64, 128)         8 KB each
//                   inputs of the epilogues, a ring each
//                   staging of the epilogues
#pragma once

#include <algorithm>

#include "kernels/epilogue_widths.h"
#include "kernels/sm90/product_epilogue.cuh"

namespace gpt2::sm90 {

constexpr int kStageBytes = kTileRows * kPieceBytes;

// kK: terms. The ring has the stages that shared memory holds beside the panel and what the epilogues want.
template <int kK_, Fp8Format kLeft_, class Epilogue>
struct StationaryShape {
  static constexpr int kK = kK_, kPanel = Epilogue::kPanel, kPieces = kK / kPieceBytes;
  static constexpr Fp8Format kLeft = kLeft_;              // of `in`
  static constexpr int kCluster = 2;                      // blocks with the same rows, which share the copies of them
  static constexpr int kConsumers = Epilogue::kConsumers; // warpgroups that multiply; one more copies
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;

  static constexpr int kPieceOfPanel = kPanel * kPieceBytes, kWeightBytes = kPieces * kPieceOfPanel;
  static constexpr int kMostStages = 8, kLongRing = 5; // shorter ones have their rows brought to L2
  static constexpr int kInputStages = 1;               // a longer ring is worth more than a second one
  static constexpr int kOthers =
      kAlignment + kBarrierRoom + kConsumers * (Epilogue::kStagingBytes + kInputStages * Epilogue::kInputBytes);
  static constexpr int kStages = std::min(kMostStages, (kMostShared - kWeightBytes - kOthers) / kStageBytes);
  static constexpr int kRingBytes = kStages * kStageBytes;
  static_assert(kStages >= 2);
  static constexpr int kSharedBytes = kOthers + kWeightBytes + kRingBytes;
};

// Is there a product for so many rows, terms and columns?
inline bool takes_stationary(const CudaDevice& device, int64_t rows, int64_t K, int64_t width) {
  const int panel = stationary_panel(K);
  return device.compute_capability == 90 && panel != 0 && width % (2 * panel) == 0 && rows % kTileRows == 0 &&
         rows > 0 && rows <= INT32_MAX; // coordinates of copies are int
}

// A ring of few stages cannot wait for memory: what it will ask for is brought to L2 two tiles before, the pieces of a
// tile shared out among the blocks that have its rows.
template <class Shape>
__device__ void prefetch_rows(const CUtensorMap& in, int64_t tile, int64_t end) {
  if (tile >= end) return;
  constexpr int kGroups = kTileRows / 16; // of rows, shared out among the cluster
  const int group = static_cast<int>(tile) * kGroups + static_cast<int>(cluster_rank()) * (kGroups / Shape::kCluster);
  for (int piece = static_cast<int>(blockIdx.x) / Shape::kCluster; piece < Shape::kPieces;
       piece += static_cast<int>(gridDim.x) / Shape::kCluster)
    prefetch_box(&in, piece * kPieceBytes, 0, 0, group);
}

template <class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    stationary_product_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap weight,
                              const __grid_constant__ typename Epilogue::Arguments arguments, int64_t tiles) {
  constexpr int kStages = Shape::kStages, kPieces = Shape::kPieces, kConsumers = Shape::kConsumers;
  using Inputs = InputRings<kConsumers, Shape::kInputStages, Epilogue::kInputBytes>;
  extern __shared__ uint8_t dynamic[];
  uint8_t* const weights = dynamic + (-shared_address(dynamic) & (kAlignment - 1));
  uint8_t* const ring = weights + Shape::kWeightBytes;
  uint8_t* const input_bytes = ring + Shape::kRingBytes;
  uint8_t* const staging = input_bytes + kConsumers * Inputs::kRingBytes;
  auto* const full = reinterpret_cast<Barrier*>(staging + kConsumers * Epilogue::kStagingBytes); // (stages)
  Barrier* const empty = full + kStages;                                                         // (stages)
  Barrier& weights_ready = empty[kStages];
  static_assert((2 * kStages + 1 + Inputs::kBarriers) * sizeof(Barrier) <= kBarrierRoom);
  const Inputs inputs{input_bytes, empty + kStages + 1};
  const int warpgroup = uniform(threadIdx.x / kWarpgroup), lane = threadIdx.x % kWarp;
  const int panel = blockIdx.x, part = blockIdx.y;
  const int64_t first = tiles * part / gridDim.y, end = tiles * (part + 1) / gridDim.y; // this block's tiles

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(Shape::kCluster * kWarpgroup / kWarp); // every warp that read it, here and in the other block
    }
    weights_ready.init(1);
    if constexpr (Epilogue::kInputs > 0) inputs.init();
    fence_barrier_init();
  }
  cluster_sync();

  RingPosition<kStages> at;
  if (warpgroup == 0) {
    give_registers<copy_registers(kConsumers)>();
    if (threadIdx.x == 0) {
      prefetch_map(&in);
      weights_ready.expect_bytes(Shape::kWeightBytes);
      for (int piece = 0; piece < kPieces; ++piece)
        load_box(weights + piece * Shape::kPieceOfPanel, &weight, weights_ready, piece * kPieceBytes, 0, 0, 0,
                 panel * (Shape::kPanel / (4 * Epilogue::kRun)));
      for (int64_t tile = first; tile < end; ++tile) {
        if constexpr (Shape::kStages < Shape::kLongRing) prefetch_rows<Shape>(in, tile + 2, end);
        for (int piece = 0; piece < kPieces; ++piece) {
          empty[at.stage].wait(at.parity ^ 1); // the first round finds them so
          full[at.stage].expect_bytes(kStageBytes);
          uint8_t* const stage = ring + at.stage * kStageBytes;
          const int row_group = static_cast<int>(tile) * (kTileRows / 16);
          const int half = static_cast<int>(cluster_rank()); // of the rows, for both blocks
          load_box(stage + half * (kStageBytes / 2), &in, full[at.stage], piece * kPieceBytes, 0, 0,
                   row_group + half * (kTileRows / 32), uint16_t{3});
          at.advance();
        }
      }
    }
    if constexpr (Epilogue::kInputs > 0) { // the other warps' first threads: one for each that multiplies
      const int consumer = static_cast<int>(threadIdx.x) / kWarp - 1;
      if (lane == 0 && consumer >= 0 && consumer < kConsumers) {
        typename Inputs::Ring input = inputs.of(consumer);
        for (int64_t tile = first + consumer; tile < end; tile += kConsumers)
          copy_inputs<Epilogue>(input, arguments, panel * Shape::kPanel, tile * kTileRows);
      }
    }
  } else {
    take_registers<product_registers(kConsumers)>();
    const int consumer = warpgroup - 1;
    Epilogue epilogue(arguments, staging + consumer * Epilogue::kStagingBytes, consumer);
    epilogue.fetch(panel * Shape::kPanel);
    epilogue.begin(panel * Shape::kPanel, kConsumers * part + consumer);
    const auto release = [&](int stage) {
      if (lane < Shape::kCluster) empty[stage].arrive_at(lane);
    };
    typename Inputs::Ring input = inputs.of(consumer);
    weights_ready.wait(0);
    at.advance(consumer * kPieces);
    if (consumer == kConsumers - 1 && first < end) give_turn(turn_barrier<kConsumers>(0));
    for (int64_t tile = first + consumer; tile < end; tile += kConsumers) {
      const int64_t row0 = tile * kTileRows;
      epilogue.prepare(row0);
      await_turn(turn_barrier<kConsumers>(consumer));
      float accumulators[Shape::kPanel / 2];
      int previous = 0;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        full[at.stage].wait(at.parity);
        products_begin();
        const uint64_t left = operand(ring + at.stage * kStageBytes);
        const uint64_t right = operand(weights + piece * Shape::kPieceOfPanel);
#pragma unroll
        for (int k = 0; k < kPieceBytes / 32; ++k)
          multiply<Shape::kLeft, Shape::kPanel>(accumulators, left + 2 * k, right + 2 * k, piece == 0 && k == 0);
        products_commit();
        if (piece == kPieces - 1 && tile + 1 < end) give_turn(turn_barrier<kConsumers>(consumer + 1));
        if (piece > 0) {
          products_wait<1>();
          release(previous);
        }
        previous = at.stage;
        at.advance();
      }
      products_wait<0>();
      keep_order(accumulators);
      release(previous);
      __syncwarp();                           // or the assembler lets the epilogue go first
      at.advance((kConsumers - 1) * kPieces); // the others' tiles
      epilogue.finish_tile(accumulators, row0, input);
    }
    epilogue.end();
    epilogue.finish();
  }
  cluster_sync(); // a block's barriers stay until nobody arrives at them any more
}

// How many blocks share a panel.
inline int stationary_parts(const CudaDevice& device, int64_t K, int width) {
  return std::max(1, device.multiprocessors / (width / stationary_panel(K)));
}

template <class Shape, class Epilogue>
void launch_stationary_product(Cuda& cuda, const ProductOperands& p, const typename Epilogue::Arguments& arguments) {
  constexpr int64_t kK = Shape::kK;
  const CUtensorMap in = in_map(p.in, kK, p.rows, kTileRows / Shape::kCluster);
  const CUtensorMap weight = weight_map<Epilogue::kRun>(p.weight, kK, p.width, Shape::kPanel);
  const auto kernel = stationary_product_kernel<Shape, Epilogue>;
  ClusterLaunch launch(cuda, Shape::kCluster, Shape::kThreads, Shape::kSharedBytes);
  launch.config.gridDim = dim3(static_cast<unsigned>(p.width / Shape::kPanel),
                               static_cast<unsigned>(stationary_parts(*cuda.device, kK, p.width)));
  launch.prepare(kernel);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, in, weight, arguments, p.rows / kTileRows));
}

// Epilogue: a template by panel and the format of `in`.
template <template <int, Fp8Format> class Epilogue, Fp8Format kLeft, class Arguments>
void launch_stationary_product(Cuda& cuda, int64_t K, const ProductOperands& p, const Arguments& arguments) {
  const auto launch = [&]<int kK>() {
    using Of = Epilogue<stationary_panel(kK), kLeft>;
    launch_stationary_product<StationaryShape<kK, kLeft, Of>, Of>(cuda, p, arguments);
  };
  if (K == 768) return launch.template operator()<768>();
  if (K == 1024) return launch.template operator()<1024>();
  launch.template operator()<1280>();
}

} // namespace gpt2::sm90
