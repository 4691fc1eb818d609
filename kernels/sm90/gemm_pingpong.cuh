// Warp-specialized ping-pong FP8 GEMM with a fused epilogue for K = 1600: D (rows, width) = in (rows, K) weight (width,
// K)^T.
//
// - Tile: 128 x 128 per CTA, 256 x 256 per cluster of 4 CTAs, k-block 128. A CTA loads half of both operands and
//   multicasts it to the neighbor that shares the rows or the columns.
// - Roles: producer warpgroup (40 registers, one thread issues TMA), two consumer warpgroups (232) in ping-pong.
// - Pipeline: 3 to 6 stages of 32 KB; 2 stages per consumer for epilogue inputs. Persistent tile scheduler, columns
//   fastest: rows come from device memory once, the weight from L2.
// - Bound: tensor cores, then the epilogue. H200, 65,536 rows, fcproj's gradient + GELU' at 1,600 channels: 1.02 to
//   1.13 ms; the FLOPs take 0.88 ms at 1.52 PFLOP/s.
#pragma once

#include <algorithm>

#include "kernels/fused_epilogues.h"
#include "kernels/sm90/gemm_epilogue.cuh"

namespace gpt2::sm90 {

constexpr int kPingpongTile = 128;                      // rows and columns of a CTA's tile
constexpr int kPingpongClusterTile = 2 * kPingpongTile; // rows and columns of a cluster's tile
constexpr int kPingpongCluster = 4;                     // CTAs; bit 0 of the rank: column half, bit 1: row half

template <int kK_, Fp8Format kFormatA_, class Epilogue>
struct PingpongShape {
  static constexpr int kK = kK_, kKBlocks = (kK + kBlockK - 1) / kBlockK;
  static constexpr Fp8Format kFormatA = kFormatA_;                                                 // of `in`
  static constexpr int kKSteps = kBlockK / 32, kLastKSteps = (kK - (kKBlocks - 1) * kBlockK) / 32; // wgmmas per k-block
  static_assert(kK % 32 == 0, "one FP8 wgmma takes 32 of K");
  static_assert(kKBlocks > 1, "the last k-block is peeled off the loop");
  static_assert(Epilogue::kBlockN == kPingpongTile, "the epilogue covers the CTA's columns");
  static constexpr int kConsumers = 2;
  static constexpr int kReaders = 3; // CTAs that read a CTA's loads: itself and two neighbors
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kHalves = kPingpongTile / kBlockM; // 64-row halves of a tile, one epilogue call each

  static constexpr int kWeightBytes = 0; // streamed
  static constexpr int kOperandBytes = kPingpongTile * kBlockK, kStageBytes = 2 * kOperandBytes;
  static constexpr int kLoadStages = 2;
  static constexpr int kOtherBytes =
      kAlignment + kBarrierBytes + kConsumers * (kLoadStages * Epilogue::kLoadBytes + Epilogue::kStagingBytes);
  static constexpr int kMaxStages = 6; // 7 were no faster
  static constexpr int kStages = std::min(kMaxStages, (kMaxSharedBytes - kOtherBytes) / kStageBytes);
  static constexpr int kSharedBytes = kOtherBytes + kStages * kStageBytes;
  static_assert(kStages >= 3, "two stages in wgmma, one in flight");
};

inline bool can_implement_pingpong(const CudaDevice& device, int64_t rows, int64_t K, int64_t width) {
  return device.sm90_kernels && uses_pingpong(K) && width % kPingpongClusterTile == 0 &&
         rows % kPingpongClusterTile == 0 && rows > 0 && rows <= INT32_MAX; // TMA coordinates are int
}

// Persistent scheduler: a cluster takes every `clusters`-th tile of 256 x 256.
struct TileScheduler {
  int column_groups; // 256 columns each
  int cluster = static_cast<int>(blockIdx.x) / kPingpongCluster,
      clusters = static_cast<int>(gridDim.x) / kPingpongCluster;
  int row_half = static_cast<int>(block_rank_in_cluster()) / 2,
      column_half = static_cast<int>(block_rank_in_cluster()) % 2;

  __device__ int row0(int tile) const { return tile / column_groups * kPingpongClusterTile + row_half * kPingpongTile; }
  __device__ int column0(int tile) const {
    return tile % column_groups * kPingpongClusterTile + column_half * kPingpongTile;
  }
};

// Producer thread: TMA loads of both operands.
template <class Shape, class Epilogue>
__device__ void load_operands(const GemmStorage<Shape, Epilogue>& smem, const TileScheduler& scheduler, int tiles,
                              const CUtensorMap& in, const CUtensorMap& weight) {
  prefetch_tma_descriptor(&in);
  prefetch_tma_descriptor(&weight);
  constexpr int kHalf = Shape::kOperandBytes / 2, kRowGroup = 16;
  const auto same_rows = static_cast<uint16_t>(3 << 2 * scheduler.row_half);
  const auto same_columns = static_cast<uint16_t>(5 << scheduler.column_half);
  PipelineState<Shape::kStages> state;
  for (int tile = scheduler.cluster; tile < tiles; tile += scheduler.clusters) {
    const int row_group = (scheduler.row0(tile) + scheduler.column_half * kBlockM) / kRowGroup;
    const int column_group = (scheduler.column0(tile) + scheduler.row_half * kBlockM) / (4 * Epilogue::kContiguous);
    for (int k_block = 0; k_block < Shape::kKBlocks; ++k_block) {
      smem.empty[state.index].wait(state.phase ^ 1); // passes at once in the first round
      smem.full[state.index].arrive_and_expect_tx(Shape::kStageBytes);
      uint8_t* const stage = smem.stages + state.index * Shape::kStageBytes;
      tma_load_multicast_4d(stage + scheduler.column_half * kHalf, &in, smem.full[state.index], k_block * kBlockK, 0, 0,
                            row_group, same_rows);
      tma_load_multicast_5d(stage + Shape::kOperandBytes + scheduler.row_half * kHalf, &weight, smem.full[state.index],
                            k_block * kBlockK, 0, 0, 0, column_group, same_columns);
      state.advance();
    }
  }
}

// Mainloop of a consumer warpgroup over one tile. Passes the ping-pong barrier on if another tile follows.
template <class Shape, class Epilogue>
__device__ void mma(float (&accumulators)[Shape::kHalves][kPingpongTile / 2], const GemmStorage<Shape, Epilogue>& smem,
                    PipelineState<Shape::kStages>& state, int consumer, int rank, int lane,
                    const TileScheduler& scheduler, int tile, int tiles) {
  constexpr int kKBlocks = Shape::kKBlocks, kConsumers = Shape::kConsumers;
  const auto release = [&](int stage) { // in this CTA, the row neighbor and the column neighbor
    if (lane < Shape::kReaders) smem.empty[stage].arrive_cluster(rank ^ lane);
  };
  int previous = 0;
  const auto mma_k_block = [&]<int kKSteps>(int k_block) {
    smem.full[state.index].wait(state.phase);
    warpgroup_arrive();
    const uint64_t left = make_smem_desc(smem.stages + state.index * Shape::kStageBytes);
    const uint64_t right = make_smem_desc(smem.stages + state.index * Shape::kStageBytes + Shape::kOperandBytes);
    constexpr uint64_t kHalfOperand = (Shape::kOperandBytes / 2) >> 4;
#pragma unroll
    for (int k = 0; k < kKSteps; ++k) {
#pragma unroll
      for (int half = 0; half < Shape::kHalves; ++half)
        wgmma_ss<Shape::kFormatA, kPingpongTile>(accumulators[half], left + half * kHalfOperand + 2 * k, right + 2 * k,
                                                 k_block == 0 && k == 0);
    }
    warpgroup_commit_batch();
  };
  const auto next_k_block = [&](int k_block) {
    if (k_block > 0) { // one batch stays in flight
      warpgroup_wait<1>();
      release(previous);
    }
    previous = state.index;
    state.advance();
  };
#pragma unroll 1
  for (int k_block = 0; k_block < kKBlocks - 1; ++k_block) {
    mma_k_block.template operator()<Shape::kKSteps>(k_block);
    next_k_block(k_block);
  }
  mma_k_block.template operator()<Shape::kLastKSteps>(kKBlocks - 1);
  if (tile + scheduler.clusters < tiles) pingpong_barrier_arrive(pingpong_barrier_id<kConsumers>(consumer + 1));
  next_k_block(kKBlocks - 1);
  warpgroup_wait<0>();
#pragma unroll
  for (auto& half : accumulators) warpgroup_fence_operand(half);
  release(previous);
  __syncwarp();                               // else ptxas moves the release behind the epilogue
  state.advance((kConsumers - 1) * kKBlocks); // skip the other warpgroup's tile
}

template <class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    gemm_pingpong_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap weight,
                         const __grid_constant__ typename Epilogue::Arguments arguments, int column_groups, int tiles) {
  constexpr int kConsumers = Shape::kConsumers;
  extern __shared__ uint8_t dynamic[];
  const GemmStorage<Shape, Epilogue> smem(dynamic);
  const int warpgroup = warp_uniform(threadIdx.x / kWarpgroup), lane = threadIdx.x % kWarp;
  const TileScheduler scheduler{column_groups};
  smem.init_barriers();

  if (warpgroup == 0) { // producer warpgroup
    warpgroup_reg_dealloc<producer_registers(kConsumers)>();
    if (threadIdx.x == 0) load_operands(smem, scheduler, tiles, in, weight);
    if constexpr (Epilogue::kLoads > 0) { // TMA loads of epilogue inputs: one producer warp per consumer warpgroup
      const int consumer = static_cast<int>(threadIdx.x) / kWarp - 1;
      if (lane == 0 && consumer >= 0 && consumer < kConsumers) {
        auto input = smem.inputs.of(consumer);
        for (int tile = scheduler.cluster + consumer * scheduler.clusters; tile < tiles;
             tile += kConsumers * scheduler.clusters) {
          for (int half = 0; half < Shape::kHalves; ++half)
            producer_load_inputs<Epilogue>(input, arguments, scheduler.column0(tile),
                                           scheduler.row0(tile) + half * kBlockM);
        }
      }
    }
  } else { // consumer warpgroups
    warpgroup_reg_alloc<consumer_registers(kConsumers)>();
    const int consumer = warpgroup - 1, rank = static_cast<int>(block_rank_in_cluster());
    Epilogue epilogue(arguments, smem.staging + consumer * Epilogue::kStagingBytes, consumer);
    auto input = smem.inputs.of(consumer);
    PipelineState<Shape::kStages> state;
    state.advance(consumer * Shape::kKBlocks);
    if (consumer == kConsumers - 1 && scheduler.cluster < tiles)
      pingpong_barrier_arrive(pingpong_barrier_id<kConsumers>(0));
    if (const int tile = scheduler.cluster + consumer * scheduler.clusters; tile < tiles)
      epilogue.fetch(scheduler.column0(tile));
    for (int tile = scheduler.cluster + consumer * scheduler.clusters; tile < tiles;
         tile += kConsumers * scheduler.clusters) {
      const int row0 = scheduler.row0(tile);
      epilogue.begin(scheduler.column0(tile), row0 / kPingpongTile);
      if (const int next = tile + kConsumers * scheduler.clusters; next < tiles)
        epilogue.fetch(scheduler.column0(next));
      pingpong_barrier_sync(pingpong_barrier_id<kConsumers>(consumer));
      float accumulators[Shape::kHalves][kPingpongTile / 2];
      mma(accumulators, smem, state, consumer, rank, lane, scheduler, tile, tiles);
#pragma unroll
      for (int half = 0; half < Shape::kHalves; ++half)
        epilogue.finish_tile(accumulators[half], row0 + half * kBlockM, input);
      epilogue.end();
    }
    epilogue.finish();
  }
  cluster_sync(); // keep the mbarriers alive until the last remote arrival
}

// Number of `slot` values that Epilogue::begin() sees: one per 128 rows.
inline int pingpong_slots(int64_t rows) { return static_cast<int>(rows / kPingpongTile); }

template <class Shape, class Epilogue>
void launch_gemm_pingpong(CudaStream& cuda, const GemmOperands& p, const typename Epilogue::Arguments& arguments) {
  constexpr int64_t kK = Shape::kK;
  const CUtensorMap in = in_map(p.in, kK, p.rows, kBlockM);
  const CUtensorMap weight = weight_map<Epilogue::kContiguous>(p.weight, kK, p.width, kBlockM);
  const auto kernel = gemm_pingpong_kernel<Shape, Epilogue>;
  ClusterLaunch launch(cuda, kPingpongCluster, Shape::kThreads, Shape::kSharedBytes);
  launch.config.gridDim =
      dim3(static_cast<unsigned>(cuda.device->multiprocessors / kPingpongCluster * kPingpongCluster));
  launch.prepare(kernel);
  static const int clusters = [&] { // co-resident: a GPC may not hold whole clusters of 4
    int most = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&most, kernel, &launch.config));
    return std::max(most, 1);
  }();
  const int column_groups = p.width / kPingpongClusterTile;
  const auto tiles = static_cast<int>(p.rows / kPingpongClusterTile) * column_groups;
  launch.config.gridDim = dim3(static_cast<unsigned>(std::min(clusters, tiles) * kPingpongCluster));
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, in, weight, arguments, column_groups, tiles));
}

// Epilogue<kBlockN, format of `in`>
template <template <int, Fp8Format> class Epilogue, Fp8Format kFormatA, class Arguments>
void launch_gemm_pingpong(CudaStream& cuda, const GemmOperands& p, const Arguments& arguments) {
  using Of = Epilogue<kPingpongTile, kFormatA>;
  launch_gemm_pingpong<PingpongShape<1600, kFormatA, Of>, Of>(cuda, p, arguments);
}

} // namespace gpt2::sm90
