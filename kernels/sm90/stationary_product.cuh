// An FP8 product whose epilogue runs beside it: D (rows, width) = in (rows, K) weight (width, K)^T for K up to 1280.
//
// A block keeps a panel of the weight in shared memory for good, and walks over tiles of 64 rows. One thread copies the
// tiles' K in pieces of 128 bytes into a ring; two or three warpgroups take tiles in turn, so that one multiplies while
// the others are in their epilogues. A turn ends when all pieces of a tile have come: a barrier tells a round from the
// next by parity alone, so nobody may wait for one before the rounds up to it are over. A pair of blocks with the same
// rows shares its copies. What an epilogue reads besides comes to a ring of its warpgroup, by a thread of its own.
//
//   shared memory   weight (K / 128, panel, 128)   147 KB for 192 x 768
//                   ring (stages, 64, 128)         8 KB each
//                   inputs of the epilogues, a ring each
//                   staging of the epilogues
//
// Both operands are put into shared memory in an order of rows that suits the epilogue. Of a tile's 16 rows the even
// ones come first: rows r and r + 8 of the accumulators, which one thread holds, are then neighbours, and their codes
// together make the 16-bit elements that stmatrix transposes. Of 32 weight rows, number 8 q + 2 j + e comes to
// 8 j + 2 q + e: a thread's accumulators are then runs of 8 neighbouring columns.
#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/vector.cuh"
#include "kernels/sm90/hopper.cuh"
#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/wgmma.cuh"

namespace gpt2::sm90 {

constexpr int kTileRows = 64;
constexpr int kPieceBytes = 128; // of K
constexpr int kStageBytes = kTileRows * kPieceBytes;
constexpr int kWarpgroup = 128;
constexpr int kGroup = 32; // columns of which a thread owns 8
constexpr int kChunk = 64; // columns that an epilogue finishes at a time

// Of barriers, 0 is the block's, and each warpgroup that multiplies has one for its epilogue and one for its turn.
__device__ constexpr int epilogue_barrier(int consumer) { return 1 + consumer; }
template <int kConsumers>
__device__ constexpr int turn_barrier(int consumer) {
  return 1 + kConsumers + consumer % kConsumers;
}

// kK: terms. The ring has the stages that shared memory holds beside the panel and what the epilogues want, whose
// inputs have two stages each, or one where the ring would be too short.
template <int kK_, Fp8Format kLeft_, class Epilogue>
struct StationaryShape {
  static constexpr int kK = kK_, kPanel = Epilogue::kPanel, kPieces = kK / kPieceBytes;
  static constexpr Fp8Format kLeft = kLeft_;              // of `in`
  static constexpr int kCluster = 2;                      // blocks with the same rows, which share the copies of them
  static constexpr int kConsumers = Epilogue::kConsumers; // warpgroups that multiply; one more copies
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kCopyRegisters = kConsumers == 2 ? 40 : 24, kRegisters = kConsumers == 2 ? 232 : 160;

  static constexpr int kAlignment = 1024; // of swizzled operands
  static constexpr int kPieceOfPanel = kPanel * kPieceBytes, kWeightBytes = kPieces * kPieceOfPanel;
  static constexpr int kMostShared = 227 * 1024, kMostStages = 8, kFewestStages = 4, kBarrierRoom = 512;
  static constexpr int stages(int input_stages) {
    const int others = kConsumers * (Epilogue::kStagingBytes + input_stages * Epilogue::kInputBytes);
    return std::min(kMostStages, (kMostShared - kAlignment - kBarrierRoom - kWeightBytes - others) / kStageBytes);
  }
  static constexpr int kInputStages = stages(2) >= kFewestStages ? 2 : 1;
  static constexpr int kStages = stages(kInputStages), kRingBytes = kStages * kStageBytes;
  static constexpr int kInputRingBytes = kInputStages * Epilogue::kInputBytes; // of one warpgroup
  static_assert(kStages >= 2);
  static constexpr int kSharedBytes =
      kAlignment + kWeightBytes + kRingBytes + kConsumers * (kInputRingBytes + Epilogue::kStagingBytes) + kBarrierRoom;
};

// Rows of the weight that a block keeps, by K; 0: no such product.
constexpr int stationary_panel(int64_t K) { return K == 768 ? 192 : K == 1024 || K == 1280 ? 128 : 0; }

// Is there a product for so many rows, terms and columns?
inline bool takes_stationary(const CudaDevice& device, int64_t rows, int64_t K, int64_t width) {
  const int panel = stationary_panel(K);
  return device.compute_capability == 90 && panel != 0 && width % (2 * panel) == 0 && rows % kTileRows == 0 &&
         rows > 0 && rows <= INT32_MAX; // coordinates of copies are int
}

// Where a thread's accumulators of one tile belong. Its rows are `row` and the one after; of each group of 32 columns
// it owns the 8 from 8 * quad on.
struct Ownership {
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int quad = lane % 4;
  int row = 16 * warp + 2 * (lane / 4);

  // Element k of the 8 in group `group`, in the row after `row` if `next`.
  __device__ static constexpr int accumulator(int group, int k, int next) {
    return (group * 4 + k / 2) * 4 + 2 * next + k % 2;
  }
};

// Where in the ring a warp is, and in which round.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int by = 1) {
    parity ^= by / kStages & 1;
    stage += by % kStages;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
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

// To the compiler: these registers get their values here, where the products have been waited for.
template <int kCount>
__device__ inline void keep_order(float (&accumulators)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

// Epilogue: what a kernel does with its accumulators.
//   struct Arguments;                         copied to the device
//   static constexpr int kPanel, kConsumers;  columns of a tile; warpgroups that multiply
//   static constexpr int kStagingBytes;       shared memory of each warpgroup
//   static constexpr int kInputBytes, kInputs;  of each input of a tile, and how many there are; 0: none
//   static void load_input(const Arguments&, uint8_t* to, Barrier& full, int column0, int64_t row0, int index);
//   Epilogue(const Arguments&, uint8_t* staging, int column0, int warpgroup, int part);
//   void prepare(int64_t row0);               loads that may be under way while the tile multiplies
//   void finish_tile(float (&accumulators)[kPanel / 2], int64_t row0, InputRing&);
//   void finish();                            after the last tile
template <class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    stationary_product_kernel(const __grid_constant__ CUtensorMap in_map,
                              const __grid_constant__ CUtensorMap weight_map,
                              const __grid_constant__ typename Epilogue::Arguments arguments, int64_t tiles) {
  constexpr int kStages = Shape::kStages, kPieces = Shape::kPieces, kConsumers = Shape::kConsumers;
  extern __shared__ uint8_t dynamic[];
  uint8_t* const weights = dynamic + (-shared_address(dynamic) & (Shape::kAlignment - 1));
  uint8_t* const ring = weights + Shape::kWeightBytes;
  uint8_t* const inputs = ring + Shape::kRingBytes;
  uint8_t* const staging = inputs + kConsumers * Shape::kInputRingBytes;
  auto* const full = reinterpret_cast<Barrier*>(staging + kConsumers * Epilogue::kStagingBytes); // (stages)
  Barrier* const empty = full + kStages;                                                         // (stages)
  Barrier& weights_ready = empty[kStages];
  Barrier* const input_barriers = empty + kStages + 1; // (consumers, full and empty, input stages)
  using Inputs = InputRing<Shape::kInputStages, Epilogue::kInputBytes>;
  const auto input_ring = [&](int consumer) {
    Barrier* const barriers = input_barriers + 2 * Shape::kInputStages * consumer;
    return Inputs{inputs + consumer * Shape::kInputRingBytes, barriers, barriers + Shape::kInputStages, {}};
  };
  const int warpgroup = threadIdx.x / kWarpgroup, lane = threadIdx.x % kWarp;
  const int panel = blockIdx.x, part = blockIdx.y;
  const int64_t first = tiles * part / gridDim.y, end = tiles * (part + 1) / gridDim.y; // this block's tiles

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(Shape::kCluster * kWarpgroup / kWarp); // every warp that read it, here and in the other block
    }
    weights_ready.init(1);
    if constexpr (Epilogue::kInputs > 0) {
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        const Inputs of = input_ring(consumer);
        for (int stage = 0; stage < Shape::kInputStages; ++stage) {
          of.full[stage].init(1);
          of.empty[stage].init(kWarpgroup / kWarp);
        }
      }
    }
    fence_barrier_init();
  }
  cluster_sync();

  RingPosition<kStages> at;
  if (warpgroup == 0) {
    give_registers<Shape::kCopyRegisters>();
    if (threadIdx.x == 0) {
      prefetch_map(&in_map);
      weights_ready.expect_bytes(Shape::kWeightBytes);
      for (int piece = 0; piece < kPieces; ++piece)
        load_box(weights + piece * Shape::kPieceOfPanel, &weight_map, weights_ready, piece * kPieceBytes, 0, 0, 0,
                 panel * (Shape::kPanel / kGroup));
      for (int64_t tile = first; tile < end; ++tile) {
        for (int piece = 0; piece < kPieces; ++piece) {
          empty[at.stage].wait(at.parity ^ 1); // the first round finds them so
          full[at.stage].expect_bytes(kStageBytes);
          uint8_t* const stage = ring + at.stage * kStageBytes;
          const int row_group = static_cast<int>(tile) * (kTileRows / 16);
          const int half = static_cast<int>(cluster_rank()); // of the rows, for both blocks
          load_box(stage + half * (kStageBytes / 2), &in_map, full[at.stage], piece * kPieceBytes, 0, 0,
                   row_group + half * (kTileRows / 32), uint16_t{3});
          at.advance();
        }
      }
    }
    if constexpr (Epilogue::kInputs > 0) { // the other warps' first threads: one for each that multiplies
      const int consumer = static_cast<int>(threadIdx.x) / kWarp - 1;
      if (lane == 0 && consumer >= 0 && consumer < kConsumers) {
        Inputs input = input_ring(consumer);
        for (int64_t tile = first + consumer; tile < end; tile += kConsumers) {
          for (int index = 0; index < Epilogue::kInputs; ++index) {
            input.empty[input.at.stage].wait(input.at.parity ^ 1);
            Barrier& ready = input.full[input.at.stage];
            ready.expect_bytes(Epilogue::kInputBytes);
            Epilogue::load_input(arguments, input.stage(), ready, panel * Shape::kPanel, tile * kTileRows, index);
            input.at.advance();
          }
        }
      }
    }
  } else {
    take_registers<Shape::kRegisters>();
    const int consumer = warpgroup - 1;
    Epilogue epilogue(arguments, staging + consumer * Epilogue::kStagingBytes, panel * Shape::kPanel, consumer, part);
    const auto release = [&](int stage) {
      if (lane < Shape::kCluster) empty[stage].arrive_at(lane);
    };
    Inputs input = input_ring(consumer);
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
    epilogue.finish();
  }
  cluster_sync(); // a block's barriers stay until nobody arrives at them any more
}

struct StationaryOperands {
  const uint8_t* in;     // (rows, K)
  const uint8_t* weight; // (width, K)
  int64_t rows;          // a multiple of 64
  int width;             // a multiple of two panels
};

// How many blocks share a panel.
inline int stationary_parts(const CudaDevice& device, int64_t K, int width) {
  return std::max(1, device.multiprocessors / (width / stationary_panel(K)));
}

template <class Shape, class Epilogue>
void launch_stationary_product(Cuda& cuda, const StationaryOperands& p, const typename Epilogue::Arguments& arguments) {
  constexpr int64_t kK = Shape::kK;
  const CUtensorMap in = make_tensor_map(
      p.in,
      {{kK, 1, kPieceBytes}, {8, 2 * kK, 8}, {2, kK, 2}, {p.rows / 16, 16 * kK, kTileRows / 16 / Shape::kCluster}});
  const CUtensorMap weight = make_tensor_map(p.weight, {{kK, 1, kPieceBytes},
                                                        {2, kK, 2},
                                                        {4, 8 * kK, 4},
                                                        {4, 2 * kK, 4},
                                                        {p.width / kGroup, kGroup * kK, Shape::kPanel / kGroup}});
  const auto kernel = stationary_product_kernel<Shape, Epilogue>;
  constexpr int kShared = Shape::kSharedBytes;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Shape::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.width / Shape::kPanel),
                        static_cast<unsigned>(stationary_parts(*cuda.device, kK, p.width)));
  config.blockDim = dim3(Shape::kThreads);
  config.dynamicSmemBytes = kShared;
  config.stream = cuda.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, in, weight, arguments, p.rows / kTileRows));
}

// Epilogue: a template by panel and the format of `in`.
template <template <int, Fp8Format> class Epilogue, Fp8Format kLeft, class Arguments>
void launch_stationary_product(Cuda& cuda, int64_t K, const StationaryOperands& p, const Arguments& arguments) {
  const auto launch = [&]<int kK>() {
    using Of = Epilogue<stationary_panel(kK), kLeft>;
    launch_stationary_product<StationaryShape<kK, kLeft, Of>, Of>(cuda, p, arguments);
  };
  if (K == 768) return launch.template operator()<768>();
  if (K == 1024) return launch.template operator()<1024>();
  launch.template operator()<1280>();
}

} // namespace gpt2::sm90
