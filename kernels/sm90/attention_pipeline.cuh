// Common parts of the attention kernels: scheduler, shared memory, TMA pipeline, tile GEMMs. A tile is 64 rows of 64
// channels, 64 x 128 bytes: one TMA load, one wgmma operand.
//
// Rows (m-blocks) stay with a consumer warpgroup; columns (n-blocks) stream through the pipeline. A work tile is a
// group of m-blocks, one per consumer warpgroup. The causal mask leaves a triangle: an m-block meets the n-blocks from
// its diagonal to the edge, in that order. A CTA takes groups in pairs, one from each end of the sequence, so that all
// pairs cost the same. Within documents the edge is that of the document: n-blocks beyond it are not loaded, and those
// that contain a document's border are masked.
#pragma once

#include "kernels/device/mma.cuh"
#include "kernels/device/softmax.cuh"
#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/warp_specialized.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace gpt2::sm90 {

constexpr int kHeadDim = 64;
static_assert(kHeadDim * 2 == 128, "a row of BF16 is one row of the 128-byte swizzle");
constexpr int kTileBytes = kBlockM * kHeadDim * 2; // BF16
constexpr float kLn2 = 0.6931471805599453f;

// ---- persistent tile scheduler ----

struct CausalTileScheduler {
  int T, NH;
  int work_tiles;        // pairs of m-block groups, over all heads and sequences
  const int32_t* bounds; // (B, T): where the documents of queries begin, or those of keys end; null: no documents

  __host__ __device__ int tiles() const { return T / kBlockM; }
};

inline CausalTileScheduler make_causal_scheduler(int B, int T, int NH, int consumers, const int32_t* bounds) {
  const int groups = (T / kBlockM + consumers - 1) / consumers;
  return {T, NH, B * NH * ((groups + 1) / 2), bounds};
}

enum class Columns { keys_before, queries_after }; // rows are queries, or keys

// One of the two groups of m-blocks of a pair.
template <Columns kColumns, int kConsumers, bool kDocuments>
struct CausalWorkTile {
  int batch, head;
  int first, end; // m-blocks
  int n_blocks;   // of the longest m-block
  bool exists;

  __device__ CausalWorkTile(const CausalTileScheduler& scheduler, int work_index, int index) {
    const int tiles = scheduler.tiles(), groups = (tiles + kConsumers - 1) / kConsumers, pairs = (groups + 1) / 2;
    const int pair = work_index % pairs, work = index == 0 ? pair : groups - 1 - pair;
    exists = index == 0 || work != pair; // an odd number of groups leaves the middle one without a partner
    batch = work_index / pairs / scheduler.NH;
    head = work_index / pairs % scheduler.NH;
    first = work * kConsumers;
    end = min(first + kConsumers, tiles);
    n_blocks = kColumns == Columns::keys_before ? end : tiles - first;
    if constexpr (kDocuments) n_blocks = end_step(scheduler, kColumns == Columns::keys_before ? first : end - 1);
  }

  __device__ int n_block(int step) const { return kColumns == Columns::keys_before ? end - 1 - step : first + step; }
  // The step at which `m_block` meets its diagonal.
  __device__ int first_step(int m_block) const {
    return m_block >= end ? n_blocks : kColumns == Columns::keys_before ? end - 1 - m_block : m_block - first;
  }
  // One past the last step of `m_block`.
  __device__ int end_step(const CausalTileScheduler& scheduler, int m_block) const {
    if constexpr (!kDocuments)
      return n_blocks;
    else if constexpr (kColumns == Columns::keys_before)
      return end - bound(scheduler, m_block, 0) / kBlockM;
    else
      return (bound(scheduler, m_block, kBlockM - 1) - 1) / kBlockM + 1 - first;
  }
  // The first step after the diagonal in which some row of `m_block` does not see all columns.
  __device__ int first_masked_step(const CausalTileScheduler& scheduler, int m_block) const {
    const int whole = kColumns == Columns::keys_before
                          ? end - (bound(scheduler, m_block, kBlockM - 1) + kBlockM - 1) / kBlockM
                          : bound(scheduler, m_block, 0) / kBlockM - first;
    return max(whole, first_step(m_block) + 1);
  }
  __device__ int bound(const CausalTileScheduler& scheduler, int m_block, int row_in_block) const {
    return scheduler.bounds[row(scheduler, m_block) + row_in_block];
  }
  // Where a row's document begins or ends, counted from the first column of the n-block of `step`.
  __device__ int bound_in(int step, int bound_of_row) const { return bound_of_row - n_block(step) * kBlockM; }

  // Warpgroups alternate in who gets the longer m-blocks.
  __device__ int m_block(int consumer, int index) const {
    return first + (index == 0 ? consumer : kConsumers - 1 - consumer);
  }

  // Offset of a tile's first row in (B, T, ...) and in (B, NH, T) tensors.
  __device__ int row(const CausalTileScheduler& scheduler, int tile) const {
    return batch * scheduler.T + tile * kBlockM;
  }
  __device__ int64_t lse_offset(const CausalTileScheduler& scheduler, int tile) const {
    return (int64_t{batch} * scheduler.NH + head) * scheduler.T + tile * kBlockM;
  }
};

// Tensor map of (B, T, channels) with 64 x 64 tiles; coordinates: byte in the row, row.
inline CUtensorMap tile_map(const bf16* data, int64_t rows, int64_t channels) {
  return make_tensor_map(reinterpret_cast<const uint8_t*>(data),
                         {{2 * channels, 1, 2 * kHeadDim}, {rows, 2 * channels, kBlockM}});
}

// Byte offset of a head in a row; `which` selects Q, K or V.
__device__ inline int head_bytes(const CausalTileScheduler& scheduler, int head, int which = 0) {
  return (which * scheduler.NH + head) * kHeadDim * 2;
}

// ---- shared memory ----

// Column sums of a tile, one partial per warp.
struct ColumnTotals {
  float of_warps[kWarpgroup / kWarp][kHeadDim];

  __device__ float total(int column) const {
    float sum = 0;
#pragma unroll
    for (const auto& of_warp : of_warps) sum += of_warp[column];
    return sum;
  }
};

struct TileConfig {
  int consumers;        // consumer warpgroups
  int stages;           // pipeline stages, two column tiles each
  int column_bytes = 0; // statistics per stage
  int row_stages;       // pipeline stages of m-block groups
  int row_tensors;      // tensors per m-block
  int outputs;          // output tiles per consumer, staged for TMA stores
  bool sums = false;    // column sums per output tile
};

template <TileConfig kConfig>
struct KernelTraits {
  static constexpr int kConsumers = kConfig.consumers, kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kStages = kConfig.stages, kRowStages = kConfig.row_stages;
  static constexpr int kRowTensors = kConfig.row_tensors, kColumnBytes = kConfig.column_bytes;
  static constexpr int kPairBytes = 2 * kTileBytes, kGroupBytes = kConsumers * kTileBytes;
  static constexpr int kRowBytes = kRowTensors * kGroupBytes, kStagingBytes = kConfig.outputs * kTileBytes;
  static constexpr int kSumBytes = kConfig.sums ? kConfig.outputs * static_cast<int>(sizeof(ColumnTotals)) : 0;
  static constexpr int kSharedBytes = kAlignment + kStages * (kPairBytes + kColumnBytes) + kRowStages * kRowBytes +
                                      kConsumers * (kStagingBytes + kSumBytes) + kBarrierBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes, "one CTA per SM");
  static_assert(2 * (kStages + kRowStages) * sizeof(ClusterTransactionBarrier) <= kBarrierBytes, "full and empty");
};

template <class Traits>
struct SharedStorage {
  uint8_t *stages, *rows, *staging, *sums, *stats;
  ClusterTransactionBarrier *full, *empty, *rows_full, *rows_empty;

  __device__ explicit SharedStorage(uint8_t* dynamic) {
    stages = dynamic + (-cast_smem_ptr_to_uint(dynamic) & (kAlignment - 1));
    rows = stages + Traits::kStages * Traits::kPairBytes;
    staging = rows + Traits::kRowStages * Traits::kRowBytes;
    sums = staging + Traits::kConsumers * Traits::kStagingBytes;
    stats = sums + Traits::kConsumers * Traits::kSumBytes;
    full = reinterpret_cast<ClusterTransactionBarrier*>(stats + Traits::kStages * Traits::kColumnBytes);
    empty = full + Traits::kStages;
    rows_full = empty + Traits::kStages;
    rows_empty = rows_full + Traits::kRowStages;
  }

  __device__ void init_barriers() const {
    constexpr int kReaders = Traits::kConsumers * kWarpgroup / kWarp; // warps
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Traits::kStages; ++stage) full[stage].init(1), empty[stage].init(kReaders);
      for (int stage = 0; stage < Traits::kRowStages; ++stage)
        rows_full[stage].init(1), rows_empty[stage].init(kReaders);
      fence_barrier_init();
    }
    __syncthreads();
  }

  // The two column tiles of a stage, and their statistics.
  __device__ uint8_t* columns(int stage) const { return stages + stage * Traits::kPairBytes; }
  __device__ uint8_t* column_stats(int stage) const { return stats + stage * Traits::kColumnBytes; }
  // The m-block tiles of one tensor.
  __device__ uint8_t* row_tiles(int stage, int tensor) const {
    return rows + stage * Traits::kRowBytes + tensor * Traits::kGroupBytes;
  }
};

// Producer loop of one thread. load_rows(work, tile, to, ready) loads an m-block of every tensor, kGroupBytes apart;
// load_columns(work, tile, stage, ready) loads one stage.
template <class WorkTile, class Traits>
__device__ void producer_load(const SharedStorage<Traits>& smem, const CausalTileScheduler& scheduler, auto&& load_rows,
                              auto&& load_columns) {
  PipelineState<Traits::kStages> state;
  PipelineState<Traits::kRowStages> row_state;
  for (int work_index = blockIdx.x; work_index < scheduler.work_tiles; work_index += gridDim.x) {
    for (int index = 0; index < 2; ++index) {
      const WorkTile work(scheduler, work_index, index);
      if (!work.exists) continue;
      smem.rows_empty[row_state.index].wait(row_state.phase ^ 1); // passes at once in the first round
      smem.rows_full[row_state.index].arrive_and_expect_tx((work.end - work.first) * Traits::kRowTensors * kTileBytes);
      for (int tile = work.first; tile < work.end; ++tile)
        load_rows(work, tile, smem.row_tiles(row_state.index, 0) + (tile - work.first) * kTileBytes,
                  smem.rows_full[row_state.index]);
      row_state.advance();
      for (int step = 0; step < work.n_blocks; ++step) {
        smem.empty[state.index].wait(state.phase ^ 1);
        smem.full[state.index].arrive_and_expect_tx(Traits::kPairBytes + Traits::kColumnBytes);
        load_columns(work, work.n_block(step), state.index, smem.full[state.index]);
        state.advance();
      }
    }
  }
}

// Consumer side of both pipelines, one per warpgroup.
template <class Traits>
struct ConsumerPipeline {
  const SharedStorage<Traits>& smem;
  PipelineState<Traits::kStages> state;
  PipelineState<Traits::kRowStages> row_state;

  __device__ int consumer_wait() { // returns the stage
    smem.full[state.index].wait(state.phase);
    const int stage = warp_uniform(state.index);
    state.advance();
    return stage;
  }
  // After the last wgmma that reads the stage. No proxy fence: the statistics that threads loaded are already used.
  __device__ void consumer_release(int stage) const { arrive(smem.empty[stage]); }
  __device__ void consumer_skip() { consumer_release(consumer_wait()); }

  __device__ int consumer_wait_rows() const {
    smem.rows_full[row_state.index].wait(row_state.phase);
    return warp_uniform(row_state.index);
  }
  __device__ void consumer_release_rows() {
    fence_view_async_shared(); // the next TMA load overwrites what threads have read
    __syncwarp();
    arrive(smem.rows_empty[row_state.index]);
    row_state.advance();
  }

  __device__ static void arrive(ClusterTransactionBarrier& barrier) {
    if (threadIdx.x % kWarp == 0) barrier.arrive();
  }
};

// ---- tile GEMMs ----
//
// No branch over accumulators or register operands between wgmma and warpgroup_wait(): ptxas 13.0 may reuse registers
// that wgmma still reads. Diagonal tiles therefore have code of their own.

// A (64, 64) operand in registers: [k-step of 16 columns][4 words].
using Fragments = uint32_t[4][4];

// d (64, 64) = a b^T: scores S = Q K^T, dP = dO V^T. A in shared memory or in registers.
__device__ inline void gemm_nt(float (&d)[32], const uint8_t* a, const uint8_t* b) {
  constexpr uint64_t kStep = 32 >> 4; // 16 channels
  const uint64_t left = make_smem_desc(a), right = make_smem_desc(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) wgmma_ss(d, left + step * kStep, right + step * kStep, step == 0);
}
__device__ inline void gemm_nt(float (&d)[32], const Fragments& a, const uint8_t* b) {
  constexpr uint64_t kStep = 32 >> 4;
  const uint64_t right = make_smem_desc(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) wgmma_rs(d, a[step], right + step * kStep, step == 0);
}

// d (64, 64) = a b (+ d unless zero_init): O = P V, dQ = dS K, dK = dS^T Q, dV = P^T dO.
__device__ inline void gemm_nn(float (&d)[32], const Fragments& a, const uint8_t* b, bool zero_init) {
  constexpr uint64_t kStep = 16 * 128 >> 4; // 16 rows
  const uint64_t right = make_smem_desc(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) wgmma_rs_mn_major(d, a[step], right + step * kStep, zero_init && step == 0);
}

// Accumulator i of a thread: row and column in the 64 x 64 tile.
struct AccumulatorCoord {
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;

  __device__ int row(int i) const { return 16 * warp + lane / 4 + i / 2 % 2 * 8; }
  __device__ int column(int i) const { return i / 4 * 8 + 2 * (lane % 4) + i % 2; }

  // Address that the lane passes to ldmatrix and stmatrix for 16 rows and k-step `step` of 16 channels.
  __device__ uint8_t* matrix_row(uint8_t* tile, int step) const {
    const int row = 16 * warp + lane % 16, chunk = 2 * step + lane / 16;
    return tile + row * 128 + (chunk ^ row % 8) * 16;
  }
};

__device__ inline void load_fragments(Fragments& fragments, uint8_t* tile, const AccumulatorCoord& coord) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
    ldmatrix_x4(fragments[step], reinterpret_cast<const bf16*>(coord.matrix_row(tile, step)));
}

// Accumulators rounded to BF16: operand A of the next wgmma.
__device__ inline void pack(Fragments& fragments, const float (&d)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) fragments[i / 4][i % 4] = pack_bf16(d[2 * i], d[2 * i + 1]);
}

__device__ inline float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}

// Accumulators, scaled per row, to a swizzled BF16 tile.
__device__ inline void store_tile_to_smem(uint8_t* tile, const float (&d)[32], float low, float high,
                                          const AccumulatorCoord& coord) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = i % 2 == 0 ? low : high;
      words[i] = pack_bf16(d[8 * step + 2 * i] * factor, d[8 * step + 2 * i + 1] * factor);
    }
    stmatrix_x4(coord.matrix_row(tile, step), words);
  }
}

// Column sums over the 16 rows of a warp, by reduce-scatter: lane l ends with columns 2 l and 2 l + 1.
__device__ inline void put_column_sums(ColumnTotals& totals, const float (&d)[32], float factor,
                                       const AccumulatorCoord& coord) {
  static_assert(kHeadDim == 2 * kWarp);
  float sums[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) sums[i] = d[i / 2 * 4 + i % 2] + d[i / 2 * 4 + 2 + i % 2];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = exchanged_sum(sums[i], sums[i + 8], 16);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = exchanged_sum(sums[i], sums[i + 4], 8);
#pragma unroll
  for (int i = 0; i < 2; ++i) sums[i] = exchanged_sum(sums[i], sums[i + 2], 4);
  *reinterpret_cast<float2*>(&totals.of_warps[coord.warp][2 * coord.lane]) = {sums[0] * factor, sums[1] * factor};
}

// TMA store of a warpgroup's tiles, each at its byte offset in the rows. stage() writes shared memory after the
// previous stores have read it.
template <int kOutputs>
__device__ void tma_store_tiles(const CUtensorMap& map, uint8_t* staging, int barrier, const int (&bytes)[kOutputs],
                                int row, auto&& stage) {
  const bool leader = threadIdx.x % kWarpgroup == 0;
  if (leader) tma_store_wait();
  warpgroup_sync(barrier);
  stage(staging);
  fence_view_async_shared();
  warpgroup_sync(barrier);
  if (!leader) return;
  for (int i = 0; i < kOutputs; ++i) tma_store_2d(&map, staging + i * kTileBytes, bytes[i], row);
  tma_store_arrive();
}

// Persistent launch: one CTA per SM.
template <class Traits, class Kernel, class Arguments>
void launch_persistent(CudaStream& cuda, Kernel* kernel, const Arguments& arguments, const char* name) {
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes));
  const int blocks = std::min(arguments.scheduler.work_tiles, cuda.device->multiprocessors);
  kernel<<<static_cast<unsigned>(blocks), Traits::kThreads, Traits::kSharedBytes, cuda.stream>>>(arguments);
  CUDA_CHECK_LAUNCH(name);
}

} // namespace gpt2::sm90
