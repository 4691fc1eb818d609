// D (rows, columns) += A (K, rows)^T B (K, columns), contracted over the tokens of a micro-batch: few tiles, each of
// them long. cuBLASLt's tiles of 128 x 256 leave a split of their tail_k_blocks wave idle: 5,120 x 1,280 are 200 of
// them, 1.52 waves of 132 blocks, so that a quarter of two waves is. Two things are different:
//
// - Tiles of 256 x 320 for a cluster of two blocks. Both 1,280 and 1,600 are unsplit_tiles tiles, and 160 accumulators
// a thread
//   are what the registers hold.
// - The tail_k_blocks wave is shared out. Its tiles are cut along K into splits, and the clusters that are left over
// take the
//   tail_k_blocks k_blocks of all these tiles, one tile after the other: 59 tiles for 66 clusters are 59 splits of nine
//   tenths and 59 tenths for the 7 others. Parts of one slot in K run side by side, so that they find each other's
//   operands in L2. Whoever comes tail_k_blocks adds a tile's splits up, always in the same order.
//
// FLOPs decide: K = 65,536 at 5,120 x 1,280 is 0.86 TFLOP, 1.17 ms at the 736 TFLOP/s that large products reach under
// the power limit, and reads 0.84 GB, 0.2 ms.
#include "kernels/sm90/wgrad_gemm_splitk.h"

#include <algorithm>

#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/warp_specialized.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace gpt2::sm90 {
namespace {

constexpr int kCluster = 2, kConsumers = 2; // blocks, and warpgroups of a block that multiply
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kTileM = kConsumers * kBlockM, kTileN = 320; // of a block's tile
constexpr int kBlockK = 64;                                // of K at a time: a k_block
constexpr int kAtomChannels = 64;                          // neighbouring channels: 128 bytes, a row of a box
constexpr int kAtomBytes = kBlockK * kAtomChannels * 2;
constexpr int kABytes = kTileM / kAtomChannels * kAtomBytes, kBBytes = kTileN / kAtomChannels * kAtomBytes;
constexpr int kStageBytes = kABytes + kBBytes;
constexpr int kFlagBytes = 16; // a word of each warpgroup
constexpr int kStages = (kMaxSharedBytes - kAlignment - kBarrierBytes - kFlagBytes) / kStageBytes;
constexpr int kSharedBytes = kAlignment + kStages * kStageBytes + kBarrierBytes + kFlagBytes;
static_assert(kStages == 4 && 2 * kStages * sizeof(ClusterTransactionBarrier) <= kBarrierBytes);
constexpr int kAccumulators = kTileN / 2; // of a thread
constexpr int kPrefetchDistance = 6;      // k_blocks, of prefetches for a cluster that reads reads_alone

// Who computes what. Tiles are counted along columns first.
struct SplitKSchedule {
  int tiles, k_blocks; // of the product, and of each tile
  int clusters;
  int unsplit_tiles; // the first tiles, which are not cut: waves of one for each cluster, or all
  int splits;        // equal splits of each other tile ...
  int tail_k_blocks; // ... and the k_blocks behind them, for clusters that have no split; 0: none

  __host__ __device__ int split_tiles() const { return tiles - unsplit_tiles; } // out among clusters
  __host__ __device__ int splits_per_tile() const { return splits + (tail_k_blocks > 0); }
  __host__ __device__ int64_t accumulator_slots() const { // of accumulators that a warpgroup has of a shared tile
    return int64_t{split_tiles()} * kCluster * kConsumers;
  }
};

struct WorkTile {
  int tile; // -1: no more
  int first, end;
  int split; // -1: this is all of the tile
};

// The units of a cluster are number `cluster`, `cluster` + `clusters`, ...
__device__ inline WorkTile get_work_tile(const SplitKSchedule& s, int index) {
  if (index < s.unsplit_tiles) return {index, 0, s.k_blocks, -1};
  const int cluster = (index - s.unsplit_tiles) % s.clusters, round = (index - s.unsplit_tiles) / s.clusters;
  const int busy = s.split_tiles() * s.splits; // clusters, with a split each
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
  int64_t stride; // to the next row of d, or to the next column if it is stored swap_ab
  bool swap_ab;
  float* splits; // (splits of a tile, shared tiles, blocks, warpgroups, accumulators, threads)
  int* arrivals; // (shared tiles, blocks, warpgroups), zeros
};

// A thread's accumulators of 64 x 320. An instruction has at most 256 columns, and begins where a block does.
struct Accumulators {
  float left[64], right[96];

  __device__ float& operator[](int i) { return i < 64 ? left[i] : right[i - 64]; }

  // One k_block; b comes in halves of 32 k_rows.
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

// Adds without waiting for what was there. Nobody else of this launch adds to the same slot, so the order of
// accumulators is fixed all the same. (Sums below 1.2e-38 become zero, as memory adds.)
__device__ inline void red_add(float* to, float x, float y) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
__device__ inline void red_add(float* to, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

// A warpgroup's accumulators of one split of a tile become those of the tile if all other splits have arrived; else
// false.
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
    __threadfence(); // what the warpgroup has stored, before it counts
    *arrived_last = atomicAdd(p.arrivals + slot, 1) == s.splits_per_tile() - 1;
    __threadfence(); // and what the others have, before it is read
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
  if (row0 >= p.rows) return; // all 64 are, or none
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
      empty[stage].init(kCluster * kConsumers * kWarpgroup / kWarp); // half of b comes from the other block
    }
    fence_barrier_init();
  }
  cluster_sync();

  const int cluster = static_cast<int>(blockIdx.x) / kCluster, clusters = static_cast<int>(gridDim.x) / kCluster;
  const auto row0 = [&](int tile) { return (tile / p.column_tiles * kCluster + rank) * kTileM; };
  const auto column0 = [&](int tile) { return tile % p.column_tiles * kTileN; };
  PipelineState<kStages> state;
  if (warpgroup == 0) {
    warpgroup_reg_dealloc<producer_registers(kConsumers)>();
    if (threadIdx.x == 0) {
      prefetch_tma_descriptor(&a_map);
      prefetch_tma_descriptor(&b_map);
      const auto own = static_cast<uint16_t>(1 << rank), both = static_cast<uint16_t>((1 << kCluster) - 1);
      for (int index = cluster;; index += clusters) {
        const WorkTile work = get_work_tile(p.schedule, index);
        if (work.tile < 0) break;
        const int row_block = row0(work.tile) / kAtomChannels, column_block = column0(work.tile) / kAtomChannels;
        const bool reads_alone = work.split == p.schedule.splits; // few others bring the same operands to L2
        for (int k_block = work.first; k_block < work.end; ++k_block) {
          const int k = k_block * kBlockK, b_k = k + rank * kBlockK / 2;
          if (reads_alone && k_block + kPrefetchDistance < work.end) {
            tma_prefetch_4d(&a_map, 0, k + kPrefetchDistance * kBlockK, row_block, 0);
            tma_prefetch_4d(&b_map, 0, b_k + kPrefetchDistance * kBlockK, column_block, 0);
          }
          empty[state.index].wait(state.phase ^ 1); // the first round finds them so
          full[state.index].arrive_and_expect_tx(kStageBytes);
          uint8_t* const a = stages + state.index * kStageBytes;
          uint8_t* const b = a + kABytes + rank * kBBytes / 2;
          tma_load_multicast_4d(a, &a_map, full[state.index], 0, k, row_block, 0, own);
          tma_load_multicast_4d(b, &b_map, full[state.index], 0, b_k, column_block, 0, both);
          state.advance();
        }
      }
    }
  } else {
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
        if (k_block > work.first) { // the one before is over when one is pending
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
      __syncwarp(); // or the assembler lets the epilogue go first
      if (work.split >= 0 && !split_k_fixup(accumulators, p, work, consumer, arrived_last + consumer)) continue;
      accumulate_gradient(accumulators, p, row0(work.tile) + consumer * kBlockM, column0(work.tile));
    }
  }
  cluster_sync(); // nobody leaves before its barriers have been arrived at
}

// The tail_k_blocks wave's tiles in splits and what is left over, by the time that takes.
SplitKSchedule schedule_for(int tiles, int k_blocks, int clusters) {
  SplitKSchedule best{tiles, k_blocks, clusters, tiles / clusters * clusters, 1, 0};
  const int split_tiles = best.split_tiles();
  if (split_tiles == 0) return best;
  constexpr int kFixupKBlocks = 8; // of a split, in k_blocks: to memory and back
  int least = k_blocks;            // time, in k_blocks
  for (int splits = 1; splits * split_tiles <= clusters; ++splits) {
    const int free = clusters - splits * split_tiles;
    const int each = free > 0 ? static_cast<int>(ceil_div(split_tiles, free)) : 0; // tiles of a cluster without a split
    // So that both take equally long: each (tail_k_blocks + epilogue) = (k_blocks - tail_k_blocks) / splits + epilogue
    const int tail_k_blocks =
        each > 0 ? std::max(k_blocks - (each - 1) * splits * kFixupKBlocks, 0) / (each * splits + 1) : 0;
    const int longest = kFixupKBlocks + static_cast<int>(ceil_div(k_blocks - tail_k_blocks, splits));
    if (longest >= least) continue;
    least = longest;
    best.splits = splits;
    best.tail_k_blocks = tail_k_blocks;
  }
  if (best.splits_per_tile() == 1) best.unsplit_tiles = tiles;
  return best; // every split has a k_block: the more of them, the shorter the tail_k_blocks
}

// The product with its orientation named: rows and columns of tiles.
struct Orientation {
  bool swap_ab; // rows are m, the dimension along which D is packed
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

// Scratch memory, in words: the splits, then the arrivals.
size_t split_words(const SplitKSchedule& s) {
  return static_cast<size_t>(s.accumulator_slots() * s.splits_per_tile()) * kAccumulators * kWarpgroup;
}
size_t scratch_words(const SplitKSchedule& s) { return split_words(s) + static_cast<size_t>(s.accumulator_slots()); }

bool can_implement(const CudaDevice& device, const GemmProblem& p) {
  if (device.compute_capability != 90 || p.transpose_a || !p.transpose_b || p.a != GemmType::bf16 ||
      p.b != GemmType::bf16 || p.d != GemmType::fp32 || p.epilogue != GemmEpilogue::none || !p.accumulate ||
      p.residual || p.batch != 1 || p.k % kBlockK != 0 || p.k <= 0 || clusters_of(device) == 0)
    return false;
  // What the copy engine counts to: coordinates, and the bytes of an operand.
  if (std::max({p.m, p.n, p.k}) > INT32_MAX || 2 * std::max(p.m, p.n) * p.k >= int64_t{1} << 40) return false;
  const Orientation orientation = orientation_of(p);
  return orientation.fits() &&
         scratch_words(schedule_of(device, p, orientation)) * sizeof(float) <= device.options.scratch_bytes;
}

void launch(CudaStream& cuda, const GemmProblem& p, const GemmArguments& x) {
  const Orientation orientation = orientation_of(p);
  const auto* const rows = static_cast<const uint8_t*>(orientation.swap_ab ? x.a : x.b);
  const auto* const columns = static_cast<const uint8_t*>(orientation.swap_ab ? x.b : x.a);
  // Boxes of so many k_rows and channels, in blocks of channels.
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

GemmKernel wgrad_gemm_splitk() { return {"weight_gradient_1", can_implement, launch}; }

} // namespace gpt2::sm90
