// Weight-stationary persistent FP8 GEMM with a fused epilogue for K = 768, 1024 and 1280: D (rows, width) = in (rows,
// K) weight (width, K)^T.
//
// - Tile: 64 x 192 (K = 768) or 64 x 128, k-block 128. A CTA keeps its (kBlockN, K) weight tile in shared memory, 147
//   KB for 192 x 768, and loops over row tiles. Two CTAs with the same rows share them by TMA multicast.
// - Roles: producer warpgroup (one thread issues TMA), 2 or 3 consumer warpgroups in ping-pong.
// - Pipeline: 2 to 8 stages of 8 KB for `in`; one stage per consumer for epilogue inputs.
// - Bound: the epilogue at K = 768, where a tile is 2,304 cycles of wgmma. H200, 65,536 rows, ms per call (bound): qkv
//   0.19 (0.15), fc + GELU 0.35 (0.20), fcproj's gradient + GELU' 0.43 (0.24).
#pragma once

#include <algorithm>

#include "kernels/fused_epilogues.h"
#include "kernels/sm90/gemm_epilogue.cuh"

namespace gpt2::sm90 {

// The pipeline gets the shared memory that the weight tile and the epilogues leave.
template <int kK_, Fp8Format kFormatA_, class Epilogue>
struct WeightStationaryShape {
  static constexpr int kK = kK_, kBlockN = Epilogue::kBlockN, kKBlocks = kK / kBlockK;
  static constexpr Fp8Format kFormatA = kFormatA_;        // of `in`
  static constexpr int kCluster = 2;                      // CTAs with the same rows: each loads half and multicasts it
  static constexpr int kReaders = kCluster;               // CTAs that read a CTA's loads
  static constexpr int kConsumers = Epilogue::kConsumers; // warpgroups, beside the producer
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;

  static constexpr int kWeightBlockBytes = kBlockN * kBlockK, kWeightBytes = kKBlocks * kWeightBlockBytes;
  static constexpr int kStageBytes = kBlockM * kBlockK;
  static constexpr int kMaxStages = 8, kDeepPipeline = 5; // shallower pipelines prefetch rows into L2
  static constexpr int kLoadStages = 1;                   // a second stage gains less than a deeper main pipeline
  static constexpr int kOtherBytes =
      kAlignment + kBarrierBytes + kConsumers * (Epilogue::kStagingBytes + kLoadStages * Epilogue::kLoadBytes);
  static constexpr int kStages = std::min(kMaxStages, (kMaxSharedBytes - kWeightBytes - kOtherBytes) / kStageBytes);
  static_assert(kStages >= 2, "one stage in wgmma, one in flight");
  static_assert(kK % kBlockK == 0, "whole k-blocks: the kernel has no K tail");
  static constexpr int kSharedBytes = kOtherBytes + kWeightBytes + kStages * kStageBytes;
};

inline bool can_implement_weight_stationary(const CudaDevice& device, int64_t rows, int64_t K, int64_t width) {
  const int block_n = weight_stationary_block_n(K);
  return device.sm90_kernels && block_n != 0 && width % (2 * block_n) == 0 && rows % kBlockM == 0 && rows > 0 &&
         rows <= INT32_MAX; // TMA coordinates are int
}

// A shallow pipeline cannot hide device memory latency: rows are prefetched into L2 two tiles ahead. The CTAs that read
// a tile divide its k-blocks among them.
template <class Shape>
__device__ void prefetch_rows(const CUtensorMap& in, int64_t tile, int64_t end) {
  if (tile >= end) return;
  constexpr int kGroups = kBlockM / 16; // 16-row groups, divided among the cluster
  const int group =
      static_cast<int>(tile) * kGroups + static_cast<int>(block_rank_in_cluster()) * (kGroups / Shape::kCluster);
  for (int k_block = static_cast<int>(blockIdx.x) / Shape::kCluster; k_block < Shape::kKBlocks;
       k_block += static_cast<int>(gridDim.x) / Shape::kCluster)
    tma_prefetch_4d(&in, k_block * kBlockK, 0, 0, group);
}

// Producer thread: TMA loads of the weight tile once, then of the rows.
template <class Shape, class Epilogue>
__device__ void load_operands(const GemmStorage<Shape, Epilogue>& smem, const CUtensorMap& in,
                              const CUtensorMap& weight, int n_tile, int64_t first, int64_t end,
                              PipelineState<Shape::kStages>& state) {
  prefetch_tma_descriptor(&in);
  smem.weights_full->arrive_and_expect_tx(Shape::kWeightBytes);
  for (int k_block = 0; k_block < Shape::kKBlocks; ++k_block)
    tma_load_5d(smem.weights + k_block * Shape::kWeightBlockBytes, &weight, *smem.weights_full, k_block * kBlockK, 0, 0,
                0, n_tile * (Shape::kBlockN / (4 * Epilogue::kContiguous)));
  for (int64_t tile = first; tile < end; ++tile) {
    if constexpr (Shape::kStages < Shape::kDeepPipeline) prefetch_rows<Shape>(in, tile + 2, end);
    for (int k_block = 0; k_block < Shape::kKBlocks; ++k_block) {
      smem.empty[state.index].wait(state.phase ^ 1); // passes at once in the first round
      smem.full[state.index].arrive_and_expect_tx(Shape::kStageBytes);
      uint8_t* const stage = smem.stages + state.index * Shape::kStageBytes;
      const int row_group = static_cast<int>(tile) * (kBlockM / 16);
      const int half = static_cast<int>(block_rank_in_cluster()); // 32 rows, multicast to both CTAs
      tma_load_multicast_4d(stage + half * (Shape::kStageBytes / 2), &in, smem.full[state.index], k_block * kBlockK, 0,
                            0, row_group + half * (kBlockM / 32), uint16_t{3});
      state.advance();
    }
  }
}

// Mainloop of a consumer warpgroup over one tile. Passes the ping-pong barrier on if another tile follows.
template <class Shape, class Epilogue>
__device__ void mma(float (&accumulators)[Shape::kBlockN / 2], const GemmStorage<Shape, Epilogue>& smem,
                    PipelineState<Shape::kStages>& state, int consumer, int lane, int64_t tile, int64_t end) {
  constexpr int kKBlocks = Shape::kKBlocks, kConsumers = Shape::kConsumers;
  const auto release = [&](int stage) { // in both CTAs
    if (lane < Shape::kReaders) smem.empty[stage].arrive_cluster(lane);
  };
  int previous = 0;
#pragma unroll
  for (int k_block = 0; k_block < kKBlocks; ++k_block) {
    smem.full[state.index].wait(state.phase);
    warpgroup_arrive();
    const uint64_t left = make_smem_desc(smem.stages + state.index * Shape::kStageBytes);
    const uint64_t right = make_smem_desc(smem.weights + k_block * Shape::kWeightBlockBytes);
#pragma unroll
    for (int k = 0; k < kBlockK / 32; ++k)
      wgmma_ss<Shape::kFormatA, Shape::kBlockN>(accumulators, left + 2 * k, right + 2 * k, k_block == 0 && k == 0);
    warpgroup_commit_batch();
    if (k_block == kKBlocks - 1 && tile + 1 < end)
      pingpong_barrier_arrive(pingpong_barrier_id<kConsumers>(consumer + 1));
    if (k_block > 0) { // one batch stays in flight
      warpgroup_wait<1>();
      release(previous);
    }
    previous = state.index;
    state.advance();
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(accumulators);
  release(previous);
  __syncwarp();                               // else ptxas moves the release behind the epilogue
  state.advance((kConsumers - 1) * kKBlocks); // skip the other warpgroups' tiles
}

template <class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    gemm_weight_stationary_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap weight,
                                  const __grid_constant__ typename Epilogue::Arguments arguments, int64_t tiles) {
  constexpr int kConsumers = Shape::kConsumers;
  extern __shared__ uint8_t dynamic[];
  const GemmStorage<Shape, Epilogue> smem(dynamic);
  const int warpgroup = warp_uniform(threadIdx.x / kWarpgroup), lane = threadIdx.x % kWarp;
  const int n_tile = blockIdx.x, split = blockIdx.y;
  const int64_t first = tiles * split / gridDim.y, end = tiles * (split + 1) / gridDim.y; // row tiles
  smem.init_barriers();

  PipelineState<Shape::kStages> state;
  if (warpgroup == 0) { // producer warpgroup
    warpgroup_reg_dealloc<producer_registers(kConsumers)>();
    if (threadIdx.x == 0) load_operands(smem, in, weight, n_tile, first, end, state);
    if constexpr (Epilogue::kLoads > 0) { // TMA loads of epilogue inputs: one producer warp per consumer warpgroup
      const int consumer = static_cast<int>(threadIdx.x) / kWarp - 1;
      if (lane == 0 && consumer >= 0 && consumer < kConsumers) {
        auto input = smem.inputs.of(consumer);
        for (int64_t tile = first + consumer; tile < end; tile += kConsumers)
          producer_load_inputs<Epilogue>(input, arguments, n_tile * Shape::kBlockN, tile * kBlockM);
      }
    }
  } else { // consumer warpgroups
    warpgroup_reg_alloc<consumer_registers(kConsumers)>();
    const int consumer = warpgroup - 1;
    Epilogue epilogue(arguments, smem.staging + consumer * Epilogue::kStagingBytes, consumer);
    epilogue.fetch(n_tile * Shape::kBlockN);
    epilogue.begin(n_tile * Shape::kBlockN, kConsumers * split + consumer);
    auto input = smem.inputs.of(consumer);
    smem.weights_full->wait(0);
    state.advance(consumer * Shape::kKBlocks);
    if (consumer == kConsumers - 1 && first < end) pingpong_barrier_arrive(pingpong_barrier_id<kConsumers>(0));
    for (int64_t tile = first + consumer; tile < end; tile += kConsumers) {
      const int64_t row0 = tile * kBlockM;
      epilogue.prepare(row0);
      pingpong_barrier_sync(pingpong_barrier_id<kConsumers>(consumer));
      float accumulators[Shape::kBlockN / 2];
      mma(accumulators, smem, state, consumer, lane, tile, end);
      epilogue.finish_tile(accumulators, row0, input);
    }
    epilogue.end();
    epilogue.finish();
  }
  cluster_sync(); // keep the mbarriers alive until the last remote arrival
}

// CTAs per weight tile: gridDim.y, which splits the rows.
inline int weight_stationary_splits(const CudaDevice& device, int64_t K, int width) {
  return std::max(1, device.multiprocessors / (width / weight_stationary_block_n(K)));
}

template <class Shape, class Epilogue>
void launch_gemm_weight_stationary(CudaStream& cuda, const GemmOperands& p,
                                   const typename Epilogue::Arguments& arguments) {
  constexpr int64_t kK = Shape::kK;
  const CUtensorMap in = in_map(p.in, kK, p.rows, kBlockM / Shape::kCluster);
  const CUtensorMap weight = weight_map<Epilogue::kContiguous>(p.weight, kK, p.width, Shape::kBlockN);
  const auto kernel = gemm_weight_stationary_kernel<Shape, Epilogue>;
  ClusterLaunch launch(cuda, Shape::kCluster, Shape::kThreads, Shape::kSharedBytes);
  launch.config.gridDim = dim3(static_cast<unsigned>(p.width / Shape::kBlockN),
                               static_cast<unsigned>(weight_stationary_splits(*cuda.device, kK, p.width)));
  launch.prepare(kernel);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, in, weight, arguments, p.rows / kBlockM));
}

// Epilogue<kBlockN, format of `in`>
template <template <int, Fp8Format> class Epilogue, Fp8Format kFormatA, class Arguments>
void launch_gemm_weight_stationary(CudaStream& cuda, int64_t K, const GemmOperands& p, const Arguments& arguments) {
  const auto launch = [&]<int kK>() {
    using Of = Epilogue<weight_stationary_block_n(kK), kFormatA>;
    launch_gemm_weight_stationary<WeightStationaryShape<kK, kFormatA, Of>, Of>(cuda, p, arguments);
  };
  if (K == 768) return launch.template operator()<768>();
  if (K == 1024) return launch.template operator()<1024>();
  launch.template operator()<1280>();
}

} // namespace gpt2::sm90
