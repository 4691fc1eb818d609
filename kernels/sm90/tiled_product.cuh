// An FP8 product whose epilogue runs beside it: D (rows, width) = in (rows, K) weight (width, K)^T for K = 1600, and
// any other multiple of 32.
//
// Where a panel of the weight leaves no room for a ring (stationary_product.cuh), both operands come in pieces of 128
// bytes of K. A block multiplies tiles of 128 x 128, of which each of its two warpgroups takes every other one. Four
// blocks make 256 x 256: two share their rows, two their columns, so each copies a half of both operands for itself and
// for the neighbour that shares it. 256 bytes arrive for each term of a tile, and 128 leave L2, 26 a cycle at 80% of
// the tensor cores' rate.
//
//   shared memory   ring (stages, in and weight, 128, 128)   32 KB each
//                   inputs of the epilogues, a ring each
//                   staging of the epilogues
//
// Clusters walk over the 256 x 256 with the columns fastest: rows come from memory once, and the weight from L2.
#pragma once

#include <algorithm>

#include "kernels/epilogue_widths.h"
#include "kernels/sm90/product_epilogue.cuh"

namespace gpt2::sm90 {

constexpr int kTiledSide = 128;             // rows and columns of a block's tile
constexpr int kTiledGroup = 2 * kTiledSide; // and of a cluster's
constexpr int kTiledCluster = 4;            // its blocks: bit 0 of a rank is the half of the columns, bit 1 of the rows

template <int kK_, Fp8Format kLeft_, class Epilogue>
struct TiledShape {
  static constexpr int kK = kK_, kPieces = (kK + kPieceBytes - 1) / kPieceBytes;
  static constexpr Fp8Format kLeft = kLeft_; // of `in`
  static constexpr int kSteps = kPieceBytes / 32, kLastSteps = (kK - (kPieces - 1) * kPieceBytes) / 32;
  static_assert(kK % 32 == 0 && kPieces > 1 && Epilogue::kPanel == kTiledSide);
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kHalves = kTiledSide / kTileRows; // of a tile, which an epilogue finishes one after the other

  static constexpr int kOperandBytes = kTiledSide * kPieceBytes, kStageBytes = 2 * kOperandBytes;
  static constexpr int kInputStages = 2;
  static constexpr int kOthers =
      kAlignment + kBarrierRoom + kConsumers * (kInputStages * Epilogue::kInputBytes + Epilogue::kStagingBytes);
  static constexpr int kMostStages = 6; // seven were no faster
  static constexpr int kStages = std::min(kMostStages, (kMostShared - kOthers) / kStageBytes);
  static constexpr int kSharedBytes = kOthers + kStages * kStageBytes;
  static_assert(kStages >= 3);
};

// Is there a product for so many rows, terms and columns?
inline bool takes_tiled(const CudaDevice& device, int64_t rows, int64_t K, int64_t width) {
  return device.compute_capability == 90 && tiled_terms(K) && width % kTiledGroup == 0 && rows % kTiledGroup == 0 &&
         rows > 0 && rows <= INT32_MAX; // coordinates of copies are int
}

// The tiles of a block: those of its cluster, every `clusters`-th.
struct TiledWalk {
  int column_groups; // of 256
  int cluster = static_cast<int>(blockIdx.x) / kTiledCluster, clusters = static_cast<int>(gridDim.x) / kTiledCluster;
  int row_half = static_cast<int>(cluster_rank()) / 2, column_half = static_cast<int>(cluster_rank()) % 2;

  __device__ int row0(int tile) const { return tile / column_groups * kTiledGroup + row_half * kTiledSide; }
  __device__ int column0(int tile) const { return tile % column_groups * kTiledGroup + column_half * kTiledSide; }
};

template <class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    tiled_product_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap weight,
                         const __grid_constant__ typename Epilogue::Arguments arguments, int column_groups, int tiles) {
  constexpr int kStages = Shape::kStages, kPieces = Shape::kPieces, kConsumers = Shape::kConsumers;
  constexpr int kReaders = 3; // blocks that a copy of this one's goes to
  using Inputs = InputRings<kConsumers, Shape::kInputStages, Epilogue::kInputBytes>;
  extern __shared__ uint8_t dynamic[];
  uint8_t* const ring = dynamic + (-shared_address(dynamic) & (kAlignment - 1));
  uint8_t* const input_bytes = ring + kStages * Shape::kStageBytes;
  uint8_t* const staging = input_bytes + kConsumers * Inputs::kRingBytes;
  auto* const full = reinterpret_cast<Barrier*>(staging + kConsumers * Epilogue::kStagingBytes); // (stages)
  Barrier* const empty = full + kStages;                                                         // (stages)
  static_assert((2 * kStages + Inputs::kBarriers) * sizeof(Barrier) <= kBarrierRoom);
  const Inputs inputs{input_bytes, empty + kStages};
  const int warpgroup = uniform(threadIdx.x / kWarpgroup), lane = threadIdx.x % kWarp;
  const TiledWalk walk{column_groups};

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(kReaders * kWarpgroup / kWarp); // every warp that read it, here and in both neighbours
    }
    if constexpr (Epilogue::kInputs > 0) inputs.init();
    fence_barrier_init();
  }
  cluster_sync();

  RingPosition<kStages> at;
  if (warpgroup == 0) {
    give_registers<copy_registers(kConsumers)>();
    if (threadIdx.x == 0) {
      prefetch_map(&in);
      prefetch_map(&weight);
      constexpr int kHalf = Shape::kOperandBytes / 2, kRowGroup = 16;
      const auto same_rows = static_cast<uint16_t>(3 << 2 * walk.row_half);
      const auto same_columns = static_cast<uint16_t>(5 << walk.column_half);
      for (int tile = walk.cluster; tile < tiles; tile += walk.clusters) {
        const int row_group = (walk.row0(tile) + walk.column_half * kTileRows) / kRowGroup;
        const int column_group = (walk.column0(tile) + walk.row_half * kTileRows) / (4 * Epilogue::kRun);
        for (int piece = 0; piece < kPieces; ++piece) {
          empty[at.stage].wait(at.parity ^ 1); // the first round finds them so
          full[at.stage].expect_bytes(Shape::kStageBytes);
          uint8_t* const stage = ring + at.stage * Shape::kStageBytes;
          load_box(stage + walk.column_half * kHalf, &in, full[at.stage], piece * kPieceBytes, 0, 0, row_group,
                   same_rows);
          load_box(stage + Shape::kOperandBytes + walk.row_half * kHalf, &weight, full[at.stage], piece * kPieceBytes,
                   0, 0, 0, column_group, same_columns);
          at.advance();
        }
      }
    }
    if constexpr (Epilogue::kInputs > 0) { // the other warps' first threads: one for each that multiplies
      const int consumer = static_cast<int>(threadIdx.x) / kWarp - 1;
      if (lane == 0 && consumer >= 0 && consumer < kConsumers) {
        typename Inputs::Ring input = inputs.of(consumer);
        for (int tile = walk.cluster + consumer * walk.clusters; tile < tiles; tile += kConsumers * walk.clusters) {
          for (int half = 0; half < Shape::kHalves; ++half)
            copy_inputs<Epilogue>(input, arguments, walk.column0(tile), walk.row0(tile) + half * kTileRows);
        }
      }
    }
  } else {
    take_registers<product_registers(kConsumers)>();
    const int consumer = warpgroup - 1, rank = static_cast<int>(cluster_rank());
    Epilogue epilogue(arguments, staging + consumer * Epilogue::kStagingBytes, consumer);
    const auto release = [&](int stage) { // to itself, to who shares its rows, and to who shares its columns
      if (lane < kReaders) empty[stage].arrive_at(rank ^ lane);
    };
    typename Inputs::Ring input = inputs.of(consumer);
    at.advance(consumer * kPieces);
    if (consumer == kConsumers - 1 && walk.cluster < tiles) give_turn(turn_barrier<kConsumers>(0));
    if (const int tile = walk.cluster + consumer * walk.clusters; tile < tiles) epilogue.fetch(walk.column0(tile));
    for (int tile = walk.cluster + consumer * walk.clusters; tile < tiles; tile += kConsumers * walk.clusters) {
      const int row0 = walk.row0(tile);
      epilogue.begin(walk.column0(tile), row0 / kTiledSide);
      if (const int next = tile + kConsumers * walk.clusters; next < tiles) epilogue.fetch(walk.column0(next));
      await_turn(turn_barrier<kConsumers>(consumer));
      float accumulators[Shape::kHalves][kTiledSide / 2];
      int previous = 0;
      const auto multiply_piece = [&]<int kSteps>(int piece) {
        full[at.stage].wait(at.parity);
        products_begin();
        const uint64_t left = operand(ring + at.stage * Shape::kStageBytes);
        const uint64_t right = operand(ring + at.stage * Shape::kStageBytes + Shape::kOperandBytes);
        constexpr uint64_t kHalfOperand = (Shape::kOperandBytes / 2) >> 4;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
          for (int half = 0; half < Shape::kHalves; ++half)
            multiply<Shape::kLeft, kTiledSide>(accumulators[half], left + half * kHalfOperand + 2 * k, right + 2 * k,
                                               piece == 0 && k == 0);
        }
        products_commit();
      };
      const auto next_piece = [&](int piece) {
        if (piece > 0) {
          products_wait<1>();
          release(previous);
        }
        previous = at.stage;
        at.advance();
      };
#pragma unroll 1
      for (int piece = 0; piece < kPieces - 1; ++piece) {
        multiply_piece.template operator()<Shape::kSteps>(piece);
        next_piece(piece);
      }
      multiply_piece.template operator()<Shape::kLastSteps>(kPieces - 1);
      if (tile + walk.clusters < tiles) give_turn(turn_barrier<kConsumers>(consumer + 1));
      next_piece(kPieces - 1);
      products_wait<0>();
#pragma unroll
      for (auto& half : accumulators) keep_order(half);
      release(previous);
      __syncwarp();                           // or the assembler lets the epilogue go first
      at.advance((kConsumers - 1) * kPieces); // the other's tile
#pragma unroll
      for (int half = 0; half < Shape::kHalves; ++half)
        epilogue.finish_tile(accumulators[half], row0 + half * kTileRows, input);
      epilogue.end();
    }
    epilogue.finish();
  }
  cluster_sync(); // a block's barriers stay until nobody arrives at them any more
}

// Slots of the epilogues: one for each tile's rows.
inline int tiled_slots(int64_t rows) { return static_cast<int>(rows / kTiledSide); }

template <class Shape, class Epilogue>
void launch_tiled_product(Cuda& cuda, const ProductOperands& p, const typename Epilogue::Arguments& arguments) {
  constexpr int64_t kK = Shape::kK;
  const CUtensorMap in = in_map(p.in, kK, p.rows, kTileRows);
  const CUtensorMap weight = weight_map<Epilogue::kRun>(p.weight, kK, p.width, kTileRows);
  const auto kernel = tiled_product_kernel<Shape, Epilogue>;
  ClusterLaunch launch(cuda, kTiledCluster, Shape::kThreads, Shape::kSharedBytes);
  launch.config.gridDim = dim3(static_cast<unsigned>(cuda.device->multiprocessors / kTiledCluster * kTiledCluster));
  launch.prepare(kernel);
  static const int clusters = [&] { // that run at once: a GPC may have a remainder
    int most = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&most, kernel, &launch.config));
    return std::max(most, 1);
  }();
  const int column_groups = p.width / kTiledGroup;
  const auto tiles = static_cast<int>(p.rows / kTiledGroup) * column_groups;
  launch.config.gridDim = dim3(static_cast<unsigned>(std::min(clusters, tiles) * kTiledCluster));
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, in, weight, arguments, column_groups, tiles));
}

// Epilogue: a template by panel and the format of `in`.
template <template <int, Fp8Format> class Epilogue, Fp8Format kLeft, class Arguments>
void launch_tiled_product(Cuda& cuda, const ProductOperands& p, const Arguments& arguments) {
  using Of = Epilogue<kTiledSide, kLeft>;
  launch_tiled_product<TiledShape<1600, kLeft, Of>, Of>(cuda, p, arguments);
}

} // namespace gpt2::sm90
