// D (rows, columns) += A (K, rows)^T B (K, columns), contracted over the tokens of a micro-batch: few tiles, each of
// them long. cuBLASLt's tiles of 128 x 256 leave a part of their last wave idle: 5,120 x 1,280 are 200 of them, 1.52
// waves of 132 blocks, so that a quarter of two waves is. Two things are different:
//
// - Tiles of 256 x 320 for a cluster of two blocks. Both 1,280 and 1,600 are whole tiles, and 160 accumulators a thread
//   are what the registers hold.
// - The last wave is shared out. Its tiles are cut along K into parts, and the clusters that are left over take the
//   last pieces of all these tiles, one tile after the other: 59 tiles for 66 clusters are 59 parts of nine tenths and
//   59 tenths for the 7 others. Parts of one place in K run side by side, so that they find each other's operands in
//   L2. Whoever comes last adds a tile's parts up, always in the same order.
//
// FLOPs decide: K = 65,536 at 5,120 x 1,280 is 0.86 TFLOP, 1.17 ms at the 736 TFLOP/s that large products reach under
// the power limit, and reads 0.84 GB, 0.2 ms.
#include "kernels/sm90/matmul_weight_gradient.h"

#include <algorithm>

#include "kernels/sm90/tensor_map.h"
#include "kernels/sm90/warpgroups.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace gpt2::sm90 {
namespace {

constexpr int kCluster = 2, kConsumers = 2; // blocks, and warpgroups of a block that multiply
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kRows = kConsumers * kTileRows, kColumns = 320; // of a block's tile
constexpr int kTerms = 64;                                    // of K at a time: a piece
constexpr int kBlock = 64;                                    // neighbouring channels: 128 bytes, a row of a box
constexpr int kBlockBytes = kTerms * kBlock * 2;
constexpr int kABytes = kRows / kBlock * kBlockBytes, kBBytes = kColumns / kBlock * kBlockBytes;
constexpr int kStageBytes = kABytes + kBBytes;
constexpr int kFlagRoom = 16; // a word of each warpgroup
constexpr int kStages = (kMostShared - kAlignment - kBarrierRoom - kFlagRoom) / kStageBytes;
constexpr int kSharedBytes = kAlignment + kStages * kStageBytes + kBarrierRoom + kFlagRoom;
static_assert(kStages == 4 && 2 * kStages * sizeof(Barrier) <= kBarrierRoom);
constexpr int kAccumulators = kColumns / 2; // of a thread
constexpr int kAhead = 6;                   // pieces, of prefetches for a cluster that reads alone

// Who computes what. Tiles are counted along columns first.
struct Schedule {
  int tiles, pieces; // of the product, and of each tile
  int clusters;
  int whole; // the first tiles, which are not cut: waves of one for each cluster, or all
  int parts; // equal parts of each other tile ...
  int last;  // ... and the pieces behind them, for clusters that have no part; 0: none

  __host__ __device__ int shared() const { return tiles - whole; } // out among clusters
  __host__ __device__ int parts_of_tile() const { return parts + (last > 0); }
  __host__ __device__ int64_t places() const { // of sums that a warpgroup has of a shared tile
    return int64_t{shared()} * kCluster * kConsumers;
  }
};

struct Unit {
  int tile; // -1: no more
  int first, end;
  int part; // -1: this is all of the tile
};

// The units of a cluster are number `cluster`, `cluster` + `clusters`, ...
__device__ inline Unit unit_of(const Schedule& s, int index) {
  if (index < s.whole) return {index, 0, s.pieces, -1};
  const int cluster = (index - s.whole) % s.clusters, round = (index - s.whole) / s.clusters;
  const int busy = s.shared() * s.parts; // clusters, with a part each
  const int before = s.pieces - s.last;
  if (cluster < busy) {
    if (round > 0) return {-1, 0, 0, 0};
    const int part = cluster / s.shared();
    return {s.whole + cluster % s.shared(), before * part / s.parts, before * (part + 1) / s.parts, part};
  }
  const int tile = round * (s.clusters - busy) + cluster - busy;
  if (s.last == 0 || tile >= s.shared()) return {-1, 0, 0, 0};
  return {s.whole + tile, before, s.pieces, s.parts};
}

struct Arguments {
  Schedule schedule;
  int column_tiles;
  int rows;
  float* d;
  int64_t stride; // to the next row of d, or to the next column if it is stored turned
  bool turned;
  float* parts;  // (parts of a tile, shared tiles, blocks, warpgroups, accumulators, threads)
  int* arrivals; // (shared tiles, blocks, warpgroups), zeros
};

// A thread's sums of 64 x 320. An instruction has at most 256 columns, and begins where a block does.
struct Accumulators {
  float left[64], right[96];

  __device__ float& operator[](int i) { return i < 64 ? left[i] : right[i - 64]; }

  // One piece; b comes in halves of 32 terms.
  __device__ void multiply(const uint8_t* a, const uint8_t* b, bool fresh) {
    constexpr int kHalfBlock = kBlockBytes / 2;
    constexpr uint64_t kStep = 2048 >> 4, kHalf = (kBBytes / 2) >> 4, kRight = (2 * kHalfBlock) >> 4;
    const uint64_t a_operand = operand(a, kBlockBytes), b_operand = operand(b, kHalfBlock);
    products_begin();
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) {
      const uint64_t from = b_operand + k / 2 * kHalf + k % 2 * kStep;
      multiply_columns(left, a_operand + k * kStep, from, fresh && k == 0);
      multiply_columns(right, a_operand + k * kStep, from + kRight, fresh && k == 0);
    }
    products_commit();
  }
};

// Adds without waiting for what was there. Nobody else of this launch adds to the same place, so the order of sums is
// fixed all the same. (Sums below 1.2e-38 become zero, as memory adds.)
__device__ inline void add_to_memory(float* to, float x, float y) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
__device__ inline void add_to_memory(float* to, float x) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

// A warpgroup's sums of one part of a tile become those of the tile if all other parts have arrived; else false.
__device__ inline bool add_parts(Accumulators& sums, const Arguments& p, const Unit& unit, int consumer,
                                 int* arrived_last) {
  const Schedule& s = p.schedule;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int place = ((unit.tile - s.whole) * kCluster + static_cast<int>(cluster_rank())) * kConsumers + consumer;
  const auto part = [&](int index) {
    return reinterpret_cast<float4*>(p.parts + (index * s.places() + place) * kAccumulators * kWarpgroup) + thread;
  };
  float4* const mine = part(unit.part);
#pragma unroll
  for (int i = 0; i < kAccumulators / 4; ++i)
    __stcg(mine + i * kWarpgroup, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  warpgroup_barrier(epilogue_barrier(consumer));
  if (thread == 0) {
    __threadfence(); // what the warpgroup has stored, before it counts
    *arrived_last = atomicAdd(p.arrivals + place, 1) == s.parts_of_tile() - 1;
    __threadfence(); // and what the others have, before it is read
  }
  warpgroup_barrier(epilogue_barrier(consumer));
  if (!*arrived_last) return false;
#pragma unroll
  for (int i = 0; i < kAccumulators; ++i) sums[i] = 0;
  for (int index = 0; index < s.parts_of_tile(); ++index) {
    const float4* const from = part(index);
#pragma unroll
    for (int i = 0; i < kAccumulators / 4; ++i) {
      const float4 x = __ldcg(from + i * kWarpgroup);
      sums[4 * i] += x.x;
      sums[4 * i + 1] += x.y;
      sums[4 * i + 2] += x.z;
      sums[4 * i + 3] += x.w;
    }
  }
  return true;
}

__device__ inline void add_to_gradient(Accumulators& sums, const Arguments& p, int row0, int column0) {
  if (row0 >= p.rows) return; // all 64 are, or none
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % kWarp;
  const int row = row0 + thread / kWarp * 16 + lane / 4, column = column0 + 2 * (lane % 4);
  if (p.turned) {
    float* to = p.d + column * p.stride + row;
#pragma unroll
    for (int i = 0; i < kAccumulators / 4; ++i, to += 8 * p.stride) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        add_to_memory(to + 8 * h, sums[4 * i + 2 * h]);
        add_to_memory(to + p.stride + 8 * h, sums[4 * i + 2 * h + 1]);
      }
    }
  } else {
    float* to = p.d + row * p.stride + column;
#pragma unroll
    for (int h = 0; h < 2; ++h, to += 8 * p.stride) {
#pragma unroll
      for (int i = 0; i < kAccumulators / 4; ++i)
        add_to_memory(to + 8 * i, sums[4 * i + 2 * h], sums[4 * i + 2 * h + 1]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    weight_gradient_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                           const __grid_constant__ Arguments p) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* const ring = dynamic + (-shared_address(dynamic) & (kAlignment - 1));
  auto* const full = reinterpret_cast<Barrier*>(ring + kStages * kStageBytes);
  Barrier* const empty = full + kStages;
  auto* const arrived_last = reinterpret_cast<int*>(ring + kStages * kStageBytes + kBarrierRoom);
  const int warpgroup = uniform(threadIdx.x / kWarpgroup), rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(kCluster * kConsumers * kWarpgroup / kWarp); // half of b comes from the other block
    }
    fence_barrier_init();
  }
  cluster_sync();

  const int cluster = static_cast<int>(blockIdx.x) / kCluster, clusters = static_cast<int>(gridDim.x) / kCluster;
  const auto row0 = [&](int tile) { return (tile / p.column_tiles * kCluster + rank) * kRows; };
  const auto column0 = [&](int tile) { return tile % p.column_tiles * kColumns; };
  RingPosition<kStages> at;
  if (warpgroup == 0) {
    give_registers<copy_registers(kConsumers)>();
    if (threadIdx.x == 0) {
      prefetch_map(&a_map);
      prefetch_map(&b_map);
      const auto own = static_cast<uint16_t>(1 << rank), both = static_cast<uint16_t>((1 << kCluster) - 1);
      for (int index = cluster;; index += clusters) {
        const Unit unit = unit_of(p.schedule, index);
        if (unit.tile < 0) break;
        const int row_block = row0(unit.tile) / kBlock, column_block = column0(unit.tile) / kBlock;
        const bool alone = unit.part == p.schedule.parts; // few others bring the same operands to L2
        for (int piece = unit.first; piece < unit.end; ++piece) {
          const int term = piece * kTerms, b_term = term + rank * kTerms / 2;
          if (alone && piece + kAhead < unit.end) {
            prefetch_box(&a_map, 0, term + kAhead * kTerms, row_block, 0);
            prefetch_box(&b_map, 0, b_term + kAhead * kTerms, column_block, 0);
          }
          empty[at.stage].wait(at.parity ^ 1); // the first round finds them so
          full[at.stage].expect_bytes(kStageBytes);
          uint8_t* const a = ring + at.stage * kStageBytes;
          uint8_t* const b = a + kABytes + rank * kBBytes / 2;
          load_box(a, &a_map, full[at.stage], 0, term, row_block, 0, own);
          load_box(b, &b_map, full[at.stage], 0, b_term, column_block, 0, both);
          at.advance();
        }
      }
    }
  } else {
    take_registers<product_registers(kConsumers)>();
    const int consumer = warpgroup - 1, lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto release = [&](int stage) {
      if (lane < kCluster) empty[stage].arrive_at(lane);
    };
    for (int index = cluster;; index += clusters) {
      const Unit unit = unit_of(p.schedule, index);
      if (unit.tile < 0) break;
      Accumulators sums;
      int previous = 0;
#pragma unroll 1
      for (int piece = unit.first; piece < unit.end; ++piece) {
        full[at.stage].wait(at.parity);
        const uint8_t* const a = ring + at.stage * kStageBytes;
        sums.multiply(a + consumer * kBlockBytes, a + kABytes, piece == unit.first);
        if (piece > unit.first) { // the one before is over when one is pending
          products_wait<1>();
          release(previous);
        }
        previous = at.stage;
        at.advance();
      }
      products_wait<0>();
      keep_order(sums.left);
      keep_order(sums.right);
      release(previous);
      __syncwarp(); // or the assembler lets the epilogue go first
      if (unit.part >= 0 && !add_parts(sums, p, unit, consumer, arrived_last + consumer)) continue;
      add_to_gradient(sums, p, row0(unit.tile) + consumer * kTileRows, column0(unit.tile));
    }
  }
  cluster_sync(); // nobody leaves before its barriers have been arrived at
}

// The last wave's tiles in parts and what is left over, by the time that takes.
Schedule schedule_for(int tiles, int pieces, int clusters) {
  Schedule best{tiles, pieces, clusters, tiles / clusters * clusters, 1, 0};
  const int shared = best.shared();
  if (shared == 0) return best;
  constexpr int kEpilogue = 8; // of a part, in pieces: to memory and back
  int least = pieces;          // time, in pieces
  for (int parts = 1; parts * shared <= clusters; ++parts) {
    const int free = clusters - parts * shared;
    const int each = free > 0 ? static_cast<int>(ceil_div(shared, free)) : 0; // tiles of a cluster without a part
    // So that both take equally long: each (last + epilogue) = (pieces - last) / parts + epilogue
    const int last = each > 0 ? std::max(pieces - (each - 1) * parts * kEpilogue, 0) / (each * parts + 1) : 0;
    const int longest = kEpilogue + static_cast<int>(ceil_div(pieces - last, parts));
    if (longest >= least) continue;
    least = longest;
    best.parts = parts;
    best.last = last;
  }
  if (best.parts_of_tile() == 1) best.whole = tiles;
  return best; // every part has a piece: the more of them, the shorter the last
}

// The product with its sides named: rows and columns of tiles.
struct Sides {
  bool turned; // rows are m, the dimension along which D is packed
  int64_t rows, columns;
  int column_tiles, tiles;

  Sides(const MatmulProduct& p, bool turned)
      : turned(turned),
        rows(turned ? p.m : p.n),
        columns(turned ? p.n : p.m),
        column_tiles(static_cast<int>(columns / kColumns)),
        tiles(column_tiles * static_cast<int>(ceil_div(rows, kCluster * kRows))) {}
  bool possible() const { return rows % kBlock == 0 && columns % kColumns == 0; }
};

Sides sides_of(const MatmulProduct& p) {
  const Sides plain(p, false), turned(p, true);
  if (!plain.possible() || (turned.possible() && turned.tiles < plain.tiles)) return turned;
  return plain;
}

int clusters_of(const CudaDevice& device) { return device.multiprocessors / kCluster; }

Schedule schedule_of(const CudaDevice& device, const MatmulProduct& p, const Sides& sides) {
  return schedule_for(sides.tiles, static_cast<int>(p.k / kTerms), clusters_of(device));
}

// Scratch memory, in words: the parts, then the arrivals.
size_t part_words(const Schedule& s) {
  return static_cast<size_t>(s.places() * s.parts_of_tile()) * kAccumulators * kWarpgroup;
}
size_t scratch_words(const Schedule& s) { return part_words(s) + static_cast<size_t>(s.places()); }

bool takes(const CudaDevice& device, const MatmulProduct& p) {
  if (device.compute_capability != 90 || p.transpose_a || !p.transpose_b || p.a != MatmulType::bf16 ||
      p.b != MatmulType::bf16 || p.d != MatmulType::fp32 || p.epilogue != MatmulEpilogue::none || !p.accumulate ||
      p.residual || p.batch != 1 || p.k % kTerms != 0 || p.k <= 0 || clusters_of(device) == 0)
    return false;
  // What the copy engine counts to: coordinates, and the bytes of an operand.
  if (std::max({p.m, p.n, p.k}) > INT32_MAX || 2 * std::max(p.m, p.n) * p.k >= int64_t{1} << 40) return false;
  const Sides sides = sides_of(p);
  return sides.possible() &&
         scratch_words(schedule_of(device, p, sides)) * sizeof(float) <= device.options.scratch_bytes;
}

void launch(Cuda& cuda, const MatmulProduct& p, const MatmulOperands& x) {
  const Sides sides = sides_of(p);
  const auto* const rows = static_cast<const uint8_t*>(sides.turned ? x.a : x.b);
  const auto* const columns = static_cast<const uint8_t*>(sides.turned ? x.b : x.a);
  // Boxes of so many terms and channels, in blocks of channels.
  const auto map = [&](const uint8_t* data, int64_t width, int terms, int channels) {
    return make_tensor_map(data, {{2 * kBlock, 1, 2 * kBlock},
                                  {p.k, 2 * width, terms},
                                  {width / kBlock, 2 * kBlock, channels / kBlock},
                                  {1, 2 * width * p.k, 1}});
  };
  const Schedule schedule = schedule_of(*cuda.device, p, sides);
  Arguments arguments{.schedule = schedule,
                      .column_tiles = sides.column_tiles,
                      .rows = static_cast<int>(sides.rows),
                      .d = static_cast<float*>(x.d),
                      .stride = p.m,
                      .turned = sides.turned,
                      .parts = nullptr,
                      .arrivals = nullptr};
  if (schedule.shared() > 0) {
    arguments.parts = cuda.scratch<float>(scratch_words(schedule));
    arguments.arrivals = reinterpret_cast<int*>(arguments.parts + part_words(schedule));
    CUDA_CHECK(
        cudaMemsetAsync(arguments.arrivals, 0, static_cast<size_t>(schedule.places()) * sizeof(int), cuda.stream));
  }
  ClusterLaunch launch(cuda, kCluster, kThreads, kSharedBytes);
  launch.config.gridDim = dim3(static_cast<unsigned>(schedule.clusters * kCluster));
  launch.prepare(weight_gradient_kernel);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, weight_gradient_kernel, map(rows, sides.rows, kTerms, kRows),
                                map(columns, sides.columns, kTerms / 2, kColumns), arguments));
}

} // namespace

MatmulKernel weight_gradient_product() { return {"weight_gradient_1", takes, launch}; }

} // namespace gpt2::sm90
