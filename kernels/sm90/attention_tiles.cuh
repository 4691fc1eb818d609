// What attention's kernels have in common. Heads have 64 channels, so 64 rows of a head's tensor are a tile of 64 x 128
// bytes, which the copy engine brings and the product instruction takes as it is.
//
// A thread block owns a group of row tiles, one for each warpgroup that multiplies, and walks over column tiles, the
// other side of the scores, which one thread copies into a ring. Causal scores are a triangle: a row tile meets the
// columns from its diagonal to the edge, walked in that order, and a group those of its longest row tile. So that
// blocks have equal work they take two groups at a time, one from each end of the sequence.
#pragma once

#include "kernels/device/mma.cuh"
#include "kernels/device/softmax.cuh"
#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/warpgroups.cuh"
#include "kernels/sm90/wgmma_bf16.cuh"

namespace gpt2::sm90 {

constexpr int kHead = 64;                         // channels of a head
constexpr int kTileBytes = kTileRows * kHead * 2; // BF16
constexpr float kLn2 = 0.6931471805599453f;

// ---- what a block works on ----

struct Heads {
  int T, NH;
  int units; // of work: pairs of groups, of all heads

  __host__ __device__ int tiles() const { return T / kTileRows; }
};

inline Heads make_heads(int B, int T, int NH, int consumers) {
  const int groups = (T / kTileRows + consumers - 1) / consumers;
  return {T, NH, B * NH * ((groups + 1) / 2)};
}

enum class Columns { keys_before, queries_after }; // a row is a query or a key

// One of the two groups of a unit. Tiles are numbered in a sequence.
template <Columns kColumns, int kConsumers>
struct TileGroup {
  int batch, head;
  int first, end; // its row tiles
  int columns;    // its column tiles
  bool exists;

  __device__ TileGroup(const Heads& heads, int unit, int index) {
    const int tiles = heads.tiles(), groups = (tiles + kConsumers - 1) / kConsumers, pairs = (groups + 1) / 2;
    const int pair = unit % pairs, group = index == 0 ? pair : groups - 1 - pair;
    exists = index == 0 || group != pair; // of an odd number, the one in the middle is alone
    batch = unit / pairs / heads.NH;
    head = unit / pairs % heads.NH;
    first = group * kConsumers;
    end = min(first + kConsumers, tiles);
    columns = kColumns == Columns::keys_before ? end : tiles - first;
  }

  __device__ int column(int step) const { return kColumns == Columns::keys_before ? end - 1 - step : first + step; }
  // The first step that meets row tile `own`, on its diagonal.
  __device__ int first_step(int own) const {
    return own >= end ? columns : kColumns == Columns::keys_before ? end - 1 - own : own - first;
  }
  // Warpgroups take the longer rows of a group in turn.
  __device__ int own(int consumer, int index) const {
    return first + (index == 0 ? consumer : kConsumers - 1 - consumer);
  }

  // Where a tile's first row is in tensors (B, T, ...), and in (B, NH, T).
  __device__ int row(const Heads& heads, int tile) const { return batch * heads.T + tile * kTileRows; }
  __device__ int64_t query(const Heads& heads, int tile) const {
    return (int64_t{batch} * heads.NH + head) * heads.T + tile * kTileRows;
  }
};

// A (B, T, channels) tensor, tile by tile; coordinates are bytes of a row, and rows.
inline CUtensorMap tile_map(const bf16* data, int64_t rows, int64_t channels) {
  return make_tensor_map(reinterpret_cast<const uint8_t*>(data),
                         {{2 * channels, 1, 2 * kHead}, {rows, 2 * channels, kTileRows}});
}

// The first byte of a head in a row: of out, or of part `which` of Q, K and V.
__device__ inline int head_bytes(const Heads& heads, int head, int which = 0) {
  return (which * heads.NH + head) * kHead * 2;
}

// ---- shared memory ----

// The sums of a tile's columns, by the four warps that have its rows.
struct ColumnTotals {
  float of_warps[kWarpgroup / kWarp][kHead];

  __device__ float total(int column) const {
    float sum = 0;
#pragma unroll
    for (const auto& of_warp : of_warps) sum += of_warp[column];
    return sum;
  }
};

struct TileCounts {
  int consumers;        // warpgroups that multiply
  int stages;           // of the ring: two column tiles each,
  int column_bytes = 0; // and what comes with them
  int row_stages;       // groups of row tiles,
  int row_tensors;      // each of so many tensors
  int outputs;          // tiles that a consumer has on their way out,
  bool sums = false;    // and the sums of their columns
};

template <TileCounts kCounts>
struct TileLayout {
  static constexpr int kConsumers = kCounts.consumers, kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kStages = kCounts.stages, kRowStages = kCounts.row_stages;
  static constexpr int kRowTensors = kCounts.row_tensors, kColumnBytes = kCounts.column_bytes;
  static constexpr int kPairBytes = 2 * kTileBytes, kGroupBytes = kConsumers * kTileBytes;
  static constexpr int kRowBytes = kRowTensors * kGroupBytes, kStagingBytes = kCounts.outputs * kTileBytes;
  static constexpr int kSumBytes = kCounts.sums ? kCounts.outputs * static_cast<int>(sizeof(ColumnTotals)) : 0;
  static constexpr int kSharedBytes = kAlignment + kStages * (kPairBytes + kColumnBytes) + kRowStages * kRowBytes +
                                      kConsumers * (kStagingBytes + kSumBytes) + kBarrierRoom;
  static_assert(kSharedBytes <= kMostShared);
};

template <class Layout>
struct TileMemory {
  uint8_t *ring, *rows, *staging, *sums, *more;
  Barrier *full, *empty, *rows_full, *rows_empty;

  __device__ explicit TileMemory(uint8_t* dynamic) {
    ring = dynamic + (-shared_address(dynamic) & (kAlignment - 1));
    rows = ring + Layout::kStages * Layout::kPairBytes;
    staging = rows + Layout::kRowStages * Layout::kRowBytes;
    sums = staging + Layout::kConsumers * Layout::kStagingBytes;
    more = sums + Layout::kConsumers * Layout::kSumBytes;
    full = reinterpret_cast<Barrier*>(more + Layout::kStages * Layout::kColumnBytes);
    empty = full + Layout::kStages;
    rows_full = empty + Layout::kStages;
    rows_empty = rows_full + Layout::kRowStages;
  }

  __device__ void init_barriers() const {
    constexpr int kReaders = Layout::kConsumers * kWarpgroup / kWarp; // warps
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Layout::kStages; ++stage) full[stage].init(1), empty[stage].init(kReaders);
      for (int stage = 0; stage < Layout::kRowStages; ++stage)
        rows_full[stage].init(1), rows_empty[stage].init(kReaders);
      fence_barrier_init();
    }
    __syncthreads();
  }

  // Two column tiles of a stage, and what comes with them.
  __device__ uint8_t* columns(int stage) const { return ring + stage * Layout::kPairBytes; }
  __device__ uint8_t* of_columns(int stage) const { return more + stage * Layout::kColumnBytes; }
  // A group's tiles of one tensor of rows.
  __device__ uint8_t* group(int stage, int tensor) const {
    return rows + stage * Layout::kRowBytes + tensor * Layout::kGroupBytes;
  }
};

// The work of the one thread that copies. load_rows(group, tile, to, ready) brings a row tile of every tensor to `to`,
// a group's bytes apart; load_columns(group, tile, stage, ready) a stage.
template <class Group, class Layout>
__device__ void copy_tiles(const TileMemory<Layout>& memory, const Heads& heads, auto&& load_rows,
                           auto&& load_columns) {
  RingPosition<Layout::kStages> at;
  RingPosition<Layout::kRowStages> rows_at;
  for (int unit = blockIdx.x; unit < heads.units; unit += gridDim.x) {
    for (int index = 0; index < 2; ++index) {
      const Group group(heads, unit, index);
      if (!group.exists) continue;
      memory.rows_empty[rows_at.stage].wait(rows_at.parity ^ 1); // the first round finds them so
      memory.rows_full[rows_at.stage].expect_bytes((group.end - group.first) * Layout::kRowTensors * kTileBytes);
      for (int tile = group.first; tile < group.end; ++tile)
        load_rows(group, tile, memory.group(rows_at.stage, 0) + (tile - group.first) * kTileBytes,
                  memory.rows_full[rows_at.stage]);
      rows_at.advance();
      for (int step = 0; step < group.columns; ++step) {
        memory.empty[at.stage].wait(at.parity ^ 1);
        memory.full[at.stage].expect_bytes(Layout::kPairBytes + Layout::kColumnBytes);
        load_columns(group, group.column(step), at.stage, memory.full[at.stage]);
        at.advance();
      }
    }
  }
}

// Where a warpgroup that multiplies stands in both rings.
template <class Layout>
struct TileReader {
  const TileMemory<Layout>& memory;
  RingPosition<Layout::kStages> at;
  RingPosition<Layout::kRowStages> rows_at;

  __device__ int await_columns() { // their stage
    memory.full[at.stage].wait(at.parity);
    const int stage = uniform(at.stage);
    at.advance();
    return stage;
  }
  // Of columns, when no product reads them. What threads have read themselves they have used in those products: no
  // fence.
  __device__ void release(int stage) const { arrive(memory.empty[stage]); }
  __device__ void skip_columns() { release(await_columns()); }

  __device__ int await_rows() const {
    memory.rows_full[rows_at.stage].wait(rows_at.parity);
    return uniform(rows_at.stage);
  }
  __device__ void release_rows() {
    fence_for_copies(); // what threads have read is overwritten by a copy
    __syncwarp();
    arrive(memory.rows_empty[rows_at.stage]);
    rows_at.advance();
  }

  __device__ static void arrive(Barrier& barrier) {
    if (threadIdx.x % kWarp == 0) barrier.arrive();
  }
};

// ---- products ----
//
// Between products that are under way and their wait there must be no branch over accumulators or left operands:
// ptxas 13.0 may then give registers away that products still read. What differs on the diagonal is therefore code of
// its own.

// The left operand in registers, (64, 64): 16 columns each.
using Fragments = uint32_t[4][4];

// d (64, 64) = a b^T of two tiles, the left one in shared memory or in registers: scores.
__device__ inline void multiply_tiles(float (&d)[32], const uint8_t* a, const uint8_t* b) {
  constexpr uint64_t kStep = 32 >> 4; // 16 channels
  const uint64_t left = operand(a), right = operand(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) multiply_along_rows(d, left + step * kStep, right + step * kStep, step == 0);
}
__device__ inline void multiply_tiles(float (&d)[32], const Fragments& a, const uint8_t* b) {
  constexpr uint64_t kStep = 32 >> 4;
  const uint64_t right = operand(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) multiply_along_rows(d, a[step], right + step * kStep, step == 0);
}

// d (64, 64) = a b, + d unless `fresh`: the sum of a tile's rows, weighted.
__device__ inline void sum_tile(float (&d)[32], const Fragments& a, const uint8_t* b, bool fresh) {
  constexpr uint64_t kStep = 16 * 128 >> 4; // 16 rows
  const uint64_t right = operand(b);
#pragma unroll
  for (int step = 0; step < 4; ++step) multiply_across_rows(d, a[step], right + step * kStep, fresh && step == 0);
}

// A thread's accumulators of a tile: element 4 j + i is row 16 warp + lane / 4 + i / 2 * 8, column 8 j + 2 (lane % 4) +
// i % 2.
struct Place {
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int lane = static_cast<int>(threadIdx.x) % kWarp;

  __device__ int row(int i) const { return 16 * warp + lane / 4 + i / 2 % 2 * 8; }
  __device__ int column(int i) const { return i / 4 * 8 + 2 * (lane % 4) + i % 2; }

  // What lane names for ldmatrix and stmatrix of 16 rows and the step'th 16 channels.
  __device__ uint8_t* matrix_row(uint8_t* tile, int step) const {
    const int row = 16 * warp + lane % 16, piece = 2 * step + lane / 16;
    return tile + row * 128 + (piece ^ row % 8) * 16;
  }
};

__device__ inline void load_fragments(Fragments& fragments, uint8_t* tile, const Place& place) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
    load_matrices(fragments[step], reinterpret_cast<const bf16*>(place.matrix_row(tile, step)));
}

// Accumulators in BF16, as the left operand of the next product.
__device__ inline void pack(Fragments& fragments, const float (&d)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) fragments[i / 4][i % 4] = pack_bf16(d[2 * i], d[2 * i + 1]);
}

__device__ inline float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}

// Accumulators times a factor by row to a tile in shared memory.
__device__ inline void stage_tile(uint8_t* tile, const float (&d)[32], float low, float high, const Place& place) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = i % 2 == 0 ? low : high;
      words[i] = pack_bf16(d[8 * step + 2 * i] * factor, d[8 * step + 2 * i + 1] * factor);
    }
    store_matrices(place.matrix_row(tile, step), words);
  }
}

// A warp's part of the sums of a tile's columns. Of 16 sums over its two rows a thread sends half to the one 16 lanes
// away, and so on: two are left, of columns 2 lane and 2 lane + 1.
__device__ inline void put_column_sums(ColumnTotals& totals, const float (&d)[32], float factor, const Place& place) {
  float sums[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) sums[i] = d[i / 2 * 4 + i % 2] + d[i / 2 * 4 + 2 + i % 2];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = exchanged_sum(sums[i], sums[i + 8], 16);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = exchanged_sum(sums[i], sums[i + 4], 8);
#pragma unroll
  for (int i = 0; i < 2; ++i) sums[i] = exchanged_sum(sums[i], sums[i + 2], 4);
  *reinterpret_cast<float2*>(&totals.of_warps[place.warp][2 * place.lane]) = {sums[0] * factor, sums[1] * factor};
}

// Tiles of a warpgroup from shared memory to a tensor, each at its byte of the rows: stage() may write when the ones
// before have been read.
template <int kOutputs>
__device__ void store_tiles(const CUtensorMap& map, uint8_t* staging, int barrier, const int (&bytes)[kOutputs],
                            int row, auto&& stage) {
  const bool leader = threadIdx.x % kWarpgroup == 0;
  if (leader) stores_wait_read();
  warpgroup_barrier(barrier);
  stage(staging);
  fence_for_copies();
  warpgroup_barrier(barrier);
  if (!leader) return;
  for (int i = 0; i < kOutputs; ++i) store_box(&map, staging + i * kTileBytes, bytes[i], row);
  stores_commit();
}

// Blocks of one kernel on all multiprocessors.
template <class Layout, class Kernel, class Arguments>
void launch_tiles(Cuda& cuda, Kernel* kernel, const Arguments& arguments, const char* name) {
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Layout::kSharedBytes));
  const int blocks = std::min(arguments.heads.units, cuda.device->multiprocessors);
  kernel<<<static_cast<unsigned>(blocks), Layout::kThreads, Layout::kSharedBytes, cuda.stream>>>(arguments);
  CUDA_CHECK_LAUNCH(name);
}

} // namespace gpt2::sm90
