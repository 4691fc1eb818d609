// Weight gradient GEMM in BF16 with split-K in the last wave: D (rows, columns) += A (K, rows)^T B (K, columns). K is
// the tokens of a micro-batch: few tiles, long K.
//
// - Tile: 128 x 320 per CTA, 256 x 320 per cluster of 2 CTAs, k-block 64. 320 divides 1,280 and 1,600.
// - Roles: producer warpgroup (one thread issues TMA, half of B is multicast), two consumer warpgroups, cooperative.
// - Pipeline: 4 stages of 56 KB. Persistent tile scheduler.
// - Split-K: clusters without a tile in the last wave take the tail k-blocks of its tiles. The last arrival of a tile
//   adds the splits in a fixed order: deterministic. cuBLASLt's 128 x 256 tiles take 1.52 waves for 5,120 x 1,280.
// - Bound: tensor cores. H200, K = 65,536, 5,120 x 1,280: 1.07 ms (cuBLASLt 1.34); the FLOPs take 1.17 ms at 736
//   TFLOP/s, the rate of long runs at the power limit; the reads take 0.2 ms.
#include "kernels/sm90/wgrad_gemm_splitk.h"

#include <algorithm>

#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/warp_specialized.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace gpt2::sm90 {
namespace {

constexpr int kCluster = 2, kConsumers = 2; // CTAs; consumer warpgroups per CTA
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kTileM = kConsumers * kBlockM, kTileN = 320; // CTA tile
constexpr int kBlockK = 64;                                // tokens of a k-block
constexpr int kAtomChannels = 64;                          // contiguous channels: 128 bytes, one swizzled row
constexpr int kAtomBytes = kBlockK * kAtomChannels * 2;
constexpr int kABytes = kTileM / kAtomChannels * kAtomBytes, kBBytes = kTileN / kAtomChannels * kAtomBytes;
constexpr int kStageBytes = kABytes + kBBytes;
constexpr int kFlagBytes = 16; // one word per consumer warpgroup
constexpr int kStages = (kMaxSharedBytes - kAlignment - kBarrierBytes - kFlagBytes) / kStageBytes;
constexpr int kSharedBytes = kAlignment + kStages * kStageBytes + kBarrierBytes + kFlagBytes;
static_assert(kStages == 4, "measured with 4 stages of 56 KB");
static_assert(2 * kStages * sizeof(ClusterTransactionBarrier) <= kBarrierBytes, "full and empty mbarriers");
static_assert(kTileN == 128 + 192, "two wgmmas, n128 and n192, cover the columns: one has at most 256");
constexpr int kAccumulators = kTileN / 2; // per thread
constexpr int kPrefetchDistance = 6;      // k-blocks that a cluster on tail k-blocks prefetches into L2

// Tiles are numbered with the columns fastest.
struct SplitKSchedule {
  int tiles, k_blocks; // of the GEMM; of each tile
  int clusters;
  int unsplit_tiles; // the first tiles: whole waves, or all tiles
  int splits;        // equal splits of each other tile
  int tail_k_blocks; // k-blocks after those splits, for the clusters without a split; 0: none

  __host__ __device__ int split_tiles() const { return tiles - unsplit_tiles; }
  __host__ __device__ int splits_per_tile() const { return splits + (tail_k_blocks > 0); }
  __host__ __device__ int64_t accumulator_slots() const { // (split tile, CTA, consumer warpgroup)
    return int64_t{split_tiles()} * kCluster * kConsumers;
  }
};

struct WorkTile {
  int tile;       // -1: no more work
  int first, end; // k-blocks
  int split;      // -1: the whole tile
};

// A cluster takes the work tiles `cluster`, `cluster` + `clusters`, ...
__device__ inline WorkTile get_work_tile(const SplitKSchedule& s, int index) {
  if (index < s.unsplit_tiles) return {index, 0, s.k_blocks, -1};
  const int cluster = (index - s.unsplit_tiles) % s.clusters, round = (index - s.unsplit_tiles) / s.clusters;
  const int busy = s.split_tiles() * s.splits; // clusters with a split
  const int before = s.k_blocks - s.tail_k_blocks;
  if (cluster < busy) {
    if (round > 0) return {-1, 0, 0, 0};
    const int split = cluster / s.split_tiles();
    return {s.unsplit_tiles + cluster % s.split_tiles(), before * split / s.splits, before * (split + 1) / s.splits,
            split};
  }
  const int tile = round * (s.clusters - busy) + cluster - busy;
  if (s.tail_k_blocks == 0 || tile >= s.split_tiles()) return {-1, 0, 0, 0};
  return {s.unsplit_tiles + tile, before, s.k_blocks, s.splits};
}

struct Arguments {
  SplitKSchedule schedule;
  int column_tiles;
  int rows;
  float* d;
  int64_t stride; // elements between rows of d, or between columns with swap_ab
  bool swap_ab;
  float* splits; // (splits per tile, split tiles, CTAs, consumer warpgroups, accumulators, threads)
  int* arrivals; // (split tiles, CTAs, consumer warpgroups), zeros
};

// A thread's accumulators of 64 x 320: columns 0 to 127, then 128 to 319.
struct Accumulators {
  float left[64], right[96];

  __device__ float& operator[](int i) { return i < 64 ? left[i] : right[i - 64]; }

  // One k-block. B arrives in two halves of 32 tokens, one from each CTA.
  __device__ void mma(const uint8_t* a, const uint8_t* b, bool zero_init) {
    constexpr int kHalfAtom = kAtomBytes / 2;
    constexpr uint64_t kStep = 2048 >> 4, kHalf = (kBBytes / 2) >> 4, kRight = (2 * kHalfAtom) >> 4;
    const uint64_t a_desc = make_smem_desc(a, kAtomBytes), b_desc = make_smem_desc(b, kHalfAtom);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kBlockK / 16; ++k) {
      const uint64_t from = b_desc + k / 2 * kHalf + k % 2 * kStep;
      wgmma_ss_mn_major(left, a_desc + k * kStep, from, zero_init && k == 0);
      wgmma_ss_mn_major(right, a_desc + k * kStep, from + kRight, zero_init && k == 0);
    }
    warpgroup_commit_batch();
  }
};

// Adds in L2 without reading D back. No other thread of the launch adds to the same element, so the result is
// deterministic. (red.f32 flushes sums below 1.2e-38 to zero.)
__device__ inline void red_add(float* to, float x, float y) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
__device__ inline void red_add(float* to, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

// Stores a warpgroup's split. The last arrival of the tile adds all splits in order and returns true.
__device__ inline bool split_k_fixup(Accumulators& accumulators, const Arguments& p, const WorkTile& work, int consumer,
                                     int* arrived_last) {
  const SplitKSchedule& s = p.schedule;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int slot =
      ((work.tile - s.unsplit_tiles) * kCluster + static_cast<int>(block_rank_in_cluster())) * kConsumers + consumer;
  const auto split = [&](int index) {
    return reinterpret_cast<float4*>(p.splits + (index * s.accumulator_slots() + slot) * kAccumulators * kWarpgroup) +
           thread;
  };
  float4* const mine = split(work.split);
#pragma unroll
  for (int i = 0; i < kAccumulators / 4; ++i)
    __stcg(mine + i * kWarpgroup,
           make_float4(accumulators[4 * i], accumulators[4 * i + 1], accumulators[4 * i + 2], accumulators[4 * i + 3]));
  warpgroup_sync(epilogue_barrier_id(consumer));
  if (thread == 0) {
    __threadfence(); // the warpgroup's stores, before its arrival
    *arrived_last = atomicAdd(p.arrivals + slot, 1) == s.splits_per_tile() - 1;
    __threadfence(); // the other splits' stores, before the reads
  }
  warpgroup_sync(epilogue_barrier_id(consumer));
  if (!*arrived_last) return false;
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) accumulators[i] = 0;
  for (int index = 0; index < s.splits_per_tile(); ++index) {
    const float4* const from = split(index);
#pragma unroll
    for (int i = 0; i < kAccumulators / 4; ++i) {
      const float4 x = __ldcg(from + i * kWarpgroup);
      accumulators[4 * i] += x.x;
      accumulators[4 * i + 1] += x.y;
      accumulators[4 * i + 2] += x.z;
      accumulators[4 * i + 3] += x.w;
    }
  }
  return true;
}

__device__ inline void accumulate_gradient(Accumulators& accumulators, const Arguments& p, int row0, int column0) {
  if (row0 >= p.rows) return; // all 64 rows or none
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % kWarp;
  const int row = row0 + thread / kWarp * 16 + lane / 4, column = column0 + 2 * (lane % 4);
  if (p.swap_ab) {
    float* to = p.d + column * p.stride + row;
#pragma unroll
    for (int i = 0; i < kAccumulators / 4; ++i, to += 8 * p.stride) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        red_add(to + 8 * h, accumulators[4 * i + 2 * h]);
        red_add(to + p.stride + 8 * h, accumulators[4 * i + 2 * h + 1]);
      }
    }
  } else {
    float* to = p.d + row * p.stride + column;
#pragma unroll
    for (int h = 0; h < 2; ++h, to += 8 * p.stride) {
#pragma unroll
      for (int i = 0; i < kAccumulators / 4; ++i)
        red_add(to + 8 * i, accumulators[4 * i + 2 * h], accumulators[4 * i + 2 * h + 1]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    wgrad_gemm_splitk_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                             const __grid_constant__ Arguments p) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* const stages = dynamic + (-cast_smem_ptr_to_uint(dynamic) & (kAlignment - 1));
  auto* const full = reinterpret_cast<ClusterTransactionBarrier*>(stages + kStages * kStageBytes);
  ClusterTransactionBarrier* const empty = full + kStages;
  auto* const arrived_last = reinterpret_cast<int*>(stages + kStages * kStageBytes + kBarrierBytes);
  const int warpgroup = warp_uniform(threadIdx.x / kWarpgroup), rank = static_cast<int>(block_rank_in_cluster());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(kCluster * kConsumers * kWarpgroup / kWarp); // half of B comes from the other CTA
    }
    fence_barrier_init();
  }
  cluster_sync();

  const int cluster = static_cast<int>(blockIdx.x) / kCluster, clusters = static_cast<int>(gridDim.x) / kCluster;
  const auto row0 = [&](int tile) { return (tile / p.column_tiles * kCluster + rank) * kTileM; };
  const auto column0 = [&](int tile) { return tile % p.column_tiles * kTileN; };
  PipelineState<kStages> state;
  if (warpgroup == 0) { // producer warpgroup
    warpgroup_reg_dealloc<producer_registers(kConsumers)>();
    if (threadIdx.x == 0) {
      prefetch_tma_descriptor(&a_map);
      prefetch_tma_descriptor(&b_map);
      const auto own = static_cast<uint16_t>(1 << rank), both = static_cast<uint16_t>((1 << kCluster) - 1);
      for (int index = cluster;; index += clusters) {
        const WorkTile work = get_work_tile(p.schedule, index);
        if (work.tile < 0) break;
        const int row_block = row0(work.tile) / kAtomChannels, column_block = column0(work.tile) / kAtomChannels;
        const bool reads_alone = work.split == p.schedule.splits; // tail k-blocks: few clusters share them in L2
        for (int k_block = work.first; k_block < work.end; ++k_block) {
          const int k = k_block * kBlockK, b_k = k + rank * kBlockK / 2;
          if (reads_alone && k_block + kPrefetchDistance < work.end) {
            tma_prefetch_4d(&a_map, 0, k + kPrefetchDistance * kBlockK, row_block, 0);
            tma_prefetch_4d(&b_map, 0, b_k + kPrefetchDistance * kBlockK, column_block, 0);
          }
          empty[state.index].wait(state.phase ^ 1); // passes at once in the first round
          full[state.index].arrive_and_expect_tx(kStageBytes);
          uint8_t* const a = stages + state.index * kStageBytes;
          uint8_t* const b = a + kABytes + rank * kBBytes / 2;
          tma_load_multicast_4d(a, &a_map, full[state.index], 0, k, row_block, 0, own);
          tma_load_multicast_4d(b, &b_map, full[state.index], 0, b_k, column_block, 0, both);
          state.advance();
        }
      }
    }
  } else { // consumer warpgroups
    warpgroup_reg_alloc<consumer_registers(kConsumers)>();
    const int consumer = warpgroup - 1, lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto release = [&](int stage) {
      if (lane < kCluster) empty[stage].arrive_cluster(lane);
    };
    for (int index = cluster;; index += clusters) {
      const WorkTile work = get_work_tile(p.schedule, index);
      if (work.tile < 0) break;
      Accumulators accumulators;
      int previous = 0;
#pragma unroll 1
      for (int k_block = work.first; k_block < work.end; ++k_block) {
        full[state.index].wait(state.phase);
        const uint8_t* const a = stages + state.index * kStageBytes;
        accumulators.mma(a + consumer * kAtomBytes, a + kABytes, k_block == work.first);
        if (k_block > work.first) { // one batch may stay in flight
          warpgroup_wait<1>();
          release(previous);
        }
        previous = state.index;
        state.advance();
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(accumulators.left);
      warpgroup_fence_operand(accumulators.right);
      release(previous);
      __syncwarp(); // else ptxas moves the release behind the epilogue
      if (work.split >= 0 && !split_k_fixup(accumulators, p, work, consumer, arrived_last + consumer)) continue;
      accumulate_gradient(accumulators, p, row0(work.tile) + consumer * kBlockM, column0(work.tile));
    }
  }
  cluster_sync(); // keep the mbarriers alive until the last remote arrival
}

// Chooses splits and tail k-blocks of the last wave by estimated time.
SplitKSchedule schedule_for(int tiles, int k_blocks, int clusters) {
  SplitKSchedule best{tiles, k_blocks, clusters, tiles / clusters * clusters, 1, 0};
  const int split_tiles = best.split_tiles();
  if (split_tiles == 0) return best;
  constexpr int kFixupKBlocks = 8; // cost of storing and adding a split, in k-blocks
  int least = k_blocks;            // time, in k-blocks
  for (int splits = 1; splits * split_tiles <= clusters; ++splits) {
    const int free = clusters - splits * split_tiles;
    const int each = free > 0 ? static_cast<int>(ceil_div(split_tiles, free)) : 0; // tiles per cluster without a split
    // Both finish together: each (tail_k_blocks + fixup) = (k_blocks - tail_k_blocks) / splits + fixup
    const int tail_k_blocks =
        each > 0 ? std::max(k_blocks - (each - 1) * splits * kFixupKBlocks, 0) / (each * splits + 1) : 0;
    const int longest = kFixupKBlocks + static_cast<int>(ceil_div(k_blocks - tail_k_blocks, splits));
    if (longest >= least) continue;
    least = longest;
    best.splits = splits;
    best.tail_k_blocks = tail_k_blocks;
  }
  if (best.splits_per_tile() == 1) best.unsplit_tiles = tiles;
  return best; // every split has at least one k-block: more splits leave fewer tail k-blocks
}

// Which of m and n are the rows of the tiles.
struct Orientation {
  bool swap_ab; // rows are m, the contiguous dimension of D
  int64_t rows, columns;
  int column_tiles, tiles;

  Orientation(const GemmProblem& p, bool swap_ab)
      : swap_ab(swap_ab),
        rows(swap_ab ? p.m : p.n),
        columns(swap_ab ? p.n : p.m),
        column_tiles(static_cast<int>(columns / kTileN)),
        tiles(column_tiles * static_cast<int>(ceil_div(rows, kCluster * kTileM))) {}
  bool fits() const { return rows % kAtomChannels == 0 && columns % kTileN == 0; }
};

Orientation orientation_of(const GemmProblem& p) {
  const Orientation plain(p, false), swap_ab(p, true);
  if (!plain.fits() || (swap_ab.fits() && swap_ab.tiles < plain.tiles)) return swap_ab;
  return plain;
}

int clusters_of(const CudaDevice& device) { return device.multiprocessors / kCluster; }

SplitKSchedule schedule_of(const CudaDevice& device, const GemmProblem& p, const Orientation& orientation) {
  return schedule_for(orientation.tiles, static_cast<int>(p.k / kBlockK), clusters_of(device));
}

// Scratch memory in words: the splits, then the arrival counters.
size_t split_words(const SplitKSchedule& s) {
  return static_cast<size_t>(s.accumulator_slots() * s.splits_per_tile()) * kAccumulators * kWarpgroup;
}
size_t scratch_words(const SplitKSchedule& s) { return split_words(s) + static_cast<size_t>(s.accumulator_slots()); }

bool can_implement(const CudaDevice& device, const GemmProblem& p) {
  if (!device.sm90_kernels || p.transpose_a || !p.transpose_b || p.a != GemmType::bf16 || p.b != GemmType::bf16 ||
      p.d != GemmType::fp32 || p.epilogue != GemmEpilogue::none || !p.accumulate || p.residual || p.batch != 1 ||
      p.k % kBlockK != 0 || p.k <= 0 || clusters_of(device) == 0)
    return false;
  // Limits of TMA: int coordinates, operands below 2^40 bytes.
  if (std::max({p.m, p.n, p.k}) > INT32_MAX || 2 * std::max(p.m, p.n) * p.k >= int64_t{1} << 40) return false;
  const Orientation orientation = orientation_of(p);
  return orientation.fits() &&
         scratch_words(schedule_of(device, p, orientation)) * sizeof(float) <= device.options.scratch_bytes;
}

void launch(CudaStream& cuda, const GemmProblem& p, const GemmArguments& x) {
  const Orientation orientation = orientation_of(p);
  const auto* const rows = static_cast<const uint8_t*>(orientation.swap_ab ? x.a : x.b);
  const auto* const columns = static_cast<const uint8_t*>(orientation.swap_ab ? x.b : x.a);
  // Tiles of k_rows x channels, in atoms of 64 channels.
  const auto map = [&](const uint8_t* data, int64_t width, int k_rows, int channels) {
    return make_tensor_map(data, {{2 * kAtomChannels, 1, 2 * kAtomChannels},
                                  {p.k, 2 * width, k_rows},
                                  {width / kAtomChannels, 2 * kAtomChannels, channels / kAtomChannels},
                                  {1, 2 * width * p.k, 1}});
  };
  const SplitKSchedule schedule = schedule_of(*cuda.device, p, orientation);
  Arguments arguments{.schedule = schedule,
                      .column_tiles = orientation.column_tiles,
                      .rows = static_cast<int>(orientation.rows),
                      .d = static_cast<float*>(x.d),
                      .stride = p.m,
                      .swap_ab = orientation.swap_ab,
                      .splits = nullptr,
                      .arrivals = nullptr};
  if (schedule.split_tiles() > 0) {
    arguments.splits = cuda.scratch<float>(scratch_words(schedule));
    arguments.arrivals = reinterpret_cast<int*>(arguments.splits + split_words(schedule));
    CUDA_CHECK(cudaMemsetAsync(arguments.arrivals, 0, static_cast<size_t>(schedule.accumulator_slots()) * sizeof(int),
                               cuda.stream));
  }
  ClusterLaunch launch(cuda, kCluster, kThreads, kSharedBytes);
  launch.config.gridDim = dim3(static_cast<unsigned>(schedule.clusters * kCluster));
  launch.prepare(wgrad_gemm_splitk_kernel);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, wgrad_gemm_splitk_kernel, map(rows, orientation.rows, kBlockK, kTileM),
                                map(columns, orientation.columns, kBlockK / 2, kTileN), arguments));
}

} // namespace

// The name is stored in plan caches and checkpoints.
GemmKernel wgrad_gemm_splitk() { return {"weight_gradient_1", can_implement, launch}; }

} // namespace gpt2::sm90
