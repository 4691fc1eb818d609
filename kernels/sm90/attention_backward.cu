// The gradient of causal attention in two passes, which both make the probabilities again from the scores and the
// log-sum-exp of each query: one owns queries and sums dQ over keys, one owns keys and sums dK and dV over queries,
// whose scores it holds transposed. That is seven products instead of five, but every sum stays in the registers of one
// warpgroup: no atomics, no exchange between warpgroups, and the same bits every time.
//
//   P = exp(scale Q K^T - log_sum), dP = dO V^T, dS = P (dP - dot), dot = sum of dO O over a head
//   dQ = scale dS K,  dK = scale dS^T Q,  dV = P^T dO
#include <cmath>

#include "kernels/cuda/profile.h"
#include "kernels/device/column_sum.cuh"
#include "kernels/sm90/attention.h"
#include "kernels/sm90/attention_tiles.cuh"

namespace gpt2::sm90 {
namespace {

struct BackwardArguments {
  CUtensorMap qkv, dout, out, dqkv;
  const float* log_sums;   // (B, NH, T), of exponentials of a query's scaled scores
  float *log2_sums, *dots; // (B, NH, T): the pass over queries leaves them to the pass over keys
  float* partials;         // (B T / 64, 3C): column sums of each tile of dqkv, or null
  Heads heads;
  float scale;
};

// Q, dO and O in rows, K and V in columns.
struct QueryPass {
  static constexpr Columns kColumns = Columns::keys_before;
  static constexpr bool kOfKeys = false;
  using Layout = TileLayout<TileCounts{
      .consumers = 2, .stages = 8, .row_stages = 1, .row_tensors = 3, .outputs = 1, .sums = true}>;
};

// K and V in rows; Q and dO in columns, with each query's log2_sum and dot.
struct KeyPass {
  static constexpr Columns kColumns = Columns::queries_after;
  static constexpr bool kOfKeys = true;
  static constexpr int kStatisticBytes = kTileRows * static_cast<int>(sizeof(float));
  using Layout = TileLayout<TileCounts{.consumers = 2,
                                       .stages = 8,
                                       .column_bytes = 2 * kStatisticBytes,
                                       .row_stages = 1,
                                       .row_tensors = 2,
                                       .outputs = 2,
                                       .sums = true}>;
};

// A thread's columns of 64 values.
__device__ inline void load_columns(float (&values)[16], const uint8_t* from, int lane) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 two = reinterpret_cast<const float2*>(from)[4 * j + lane % 4];
    values[2 * j] = two.x;
    values[2 * j + 1] = two.y;
  }
}

// The sums of dO O over two rows of a tile.
__device__ inline void row_dots(float (&dots)[2], const Fragments& dout, const Fragments& out) {
  dots[0] = dots[1] = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 x = unpack_bf16(dout[i / 4][i % 4]), y = unpack_bf16(out[i / 4][i % 4]);
    dots[i % 2] += x.x * y.x + x.y * y.y;
  }
#pragma unroll
  for (float& dot : dots) dot = row_total(dot);
}

template <class Pass>
__device__ void copy(const TileMemory<typename Pass::Layout>& memory, const BackwardArguments& a) {
  using Group = TileGroup<Pass::kColumns, Pass::Layout::kConsumers>;
  constexpr int kGroupBytes = Pass::Layout::kGroupBytes;
  const auto load_qkv = [&](uint8_t* to, int which, const Group& group, int tile, Barrier& ready) {
    load_box(to, &a.qkv, ready, head_bytes(a.heads, group.head, which), group.row(a.heads, tile));
  };
  const auto load = [&](uint8_t* to, const CUtensorMap& map, const Group& group, int tile, Barrier& ready) {
    load_box(to, &map, ready, head_bytes(a.heads, group.head), group.row(a.heads, tile));
  };
  copy_tiles<Group>(
      memory, a.heads,
      [&](const Group& group, int tile, uint8_t* to, Barrier& ready) {
        if constexpr (Pass::kOfKeys) {
          load_qkv(to, 1, group, tile, ready);
          load_qkv(to + kGroupBytes, 2, group, tile, ready);
        } else {
          load_qkv(to, 0, group, tile, ready);
          load(to + kGroupBytes, a.dout, group, tile, ready);
          load(to + 2 * kGroupBytes, a.out, group, tile, ready);
        }
      },
      [&](const Group& group, int tile, int stage, Barrier& ready) {
        uint8_t* const to = memory.columns(stage);
        if constexpr (Pass::kOfKeys) {
          load_qkv(to, 0, group, tile, ready);
          load(to + kTileBytes, a.dout, group, tile, ready);
          const int64_t query = group.query(a.heads, tile);
          load_bytes(memory.of_columns(stage), a.log2_sums + query, Pass::kStatisticBytes, ready);
          load_bytes(memory.of_columns(stage) + Pass::kStatisticBytes, a.dots + query, Pass::kStatisticBytes, ready);
        } else {
          load_qkv(to, 1, group, tile, ready);
          load_qkv(to + kTileBytes, 2, group, tile, ready);
        }
      });
}

template <class Pass>
__global__ void __launch_bounds__(Pass::Layout::kThreads, 1)
    attention_backward_kernel(const __grid_constant__ BackwardArguments a) {
  using Layout = typename Pass::Layout;
  constexpr bool kOfKeys = Pass::kOfKeys;
  extern __shared__ uint8_t dynamic[];
  const TileMemory<Layout> memory(dynamic);
  memory.init_barriers();
  const int warpgroup = uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == 0) {
    give_registers<copy_registers(Layout::kConsumers)>();
    if (threadIdx.x == 0) copy<Pass>(memory, a);
    return;
  }

  take_registers<product_registers(Layout::kConsumers)>();
  const int consumer = warpgroup - 1;
  const Place place;
  const float scale_log2 = a.scale * kLog2e;
  TileReader<Layout> reader{memory, {}, {}};
  for (int unit = blockIdx.x; unit < a.heads.units; unit += gridDim.x) {
    for (int index = 0; index < 2; ++index) {
      const TileGroup<Pass::kColumns, Layout::kConsumers> group(a.heads, unit, index);
      if (!group.exists) continue;
      const int own = group.own(consumer, index), first_step = group.first_step(own);
      for (int step = 0; step < first_step; ++step) reader.skip_columns();
      float log_sum[2], dot[2]; // of queries where those are rows
      if (!kOfKeys && own < group.end) {
#pragma unroll
        for (int r = 0; r < 2; ++r) log_sum[r] = a.log_sums[group.query(a.heads, own) + place.row(2 * r)] * kLog2e;
      }
      const int row_stage = reader.await_rows();
      if (own >= group.end) {
        reader.release_rows();
        continue;
      }
      uint8_t* const tiles = memory.group(row_stage, 0) + (own - group.first) * kTileBytes;
      Fragments row, row_value; // Q and dO, or K and V
      load_fragments(row, tiles, place);
      load_fragments(row_value, tiles + Layout::kGroupBytes, place);
      if constexpr (!kOfKeys) {
        Fragments out;
        load_fragments(out, tiles + 2 * Layout::kGroupBytes, place);
        row_dots(dot, row_value, out);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int64_t query = group.query(a.heads, own) + place.row(2 * r);
          if (place.lane % 4 == 0) {
            a.log2_sums[query] = log_sum[r];
            a.dots[query] = dot[r];
          }
        }
      }
      reader.release_rows();

      float sum[32], value_sum[32]; // dQ and nothing, or dK and dV
      Fragments p, ds;
      int previous = 0;
      const auto add_column = [&]<bool kDiagonal>() {
        const int stage = reader.await_columns();
        const uint8_t* const column = memory.columns(stage);     // K or Q
        const uint8_t* const column_value = column + kTileBytes; // V or dO
        [[maybe_unused]] float log_sums[16], dots[16];           // of queries where those are columns
        if constexpr (kOfKeys) load_columns(log_sums, memory.of_columns(stage), place.lane);

        float score[32], slope[32]; // of the probabilities
        products_begin();
        multiply_tiles(score, row, column);
        products_commit();
        multiply_tiles(slope, row_value, column_value);
        products_commit();
        products_wait<1>(); // the scores, and the sums of the column before
        keep_order(score);
        if (!kDiagonal) reader.release(previous);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const float of_query = kOfKeys ? log_sums[i / 4 * 2 + i % 2] : log_sum[i / 2 % 2];
          score[i] = fast_exp2(score[i] * scale_log2 - of_query);
          const bool later = kOfKeys ? place.row(i) > place.column(i) : place.column(i) > place.row(i);
          if (kDiagonal && later) score[i] = 0; // no query sees a later key
        }
        if constexpr (kOfKeys) {
          load_columns(dots, memory.of_columns(stage) + Layout::kColumnBytes / 2, place.lane);
          pack(p, score);
          products_begin();
          sum_tile(value_sum, p, column_value, kDiagonal);
          products_commit();
        }
        products_wait<kOfKeys ? 1 : 0>();
        keep_order(slope);
#pragma unroll
        for (int i = 0; i < 32; ++i)
          slope[i] = score[i] * (slope[i] - (kOfKeys ? dots[i / 4 * 2 + i % 2] : dot[i / 2 % 2]));
        pack(ds, slope);
        products_begin();
        sum_tile(sum, ds, column, kDiagonal);
        products_commit();
        previous = stage;
      };
      add_column.template operator()<true>();
      for (int step = first_step + 1; step < group.columns; ++step) add_column.template operator()<false>();
      products_wait<0>();
      keep_order(sum);
      if constexpr (kOfKeys) keep_order(value_sum);
      reader.release(previous);

      uint8_t* const staging = memory.staging + consumer * Layout::kStagingBytes;
      auto* const totals = reinterpret_cast<ColumnTotals*>(memory.sums + consumer * Layout::kSumBytes);
      if (a.partials) {
        put_column_sums(totals[0], sum, a.scale, place);
        if constexpr (kOfKeys) put_column_sums(totals[1], value_sum, 1, place);
      }
      const int barrier = epilogue_barrier(consumer), to = group.row(a.heads, own);
      const auto add_up = [&](int tile, int which) { // between the barriers of store_tiles()
        const int column = static_cast<int>(threadIdx.x) % kWarpgroup - tile * kHead;
        if (!a.partials || column < 0 || column >= kHead) return;
        const int64_t width = 3 * int64_t{a.heads.NH} * kHead, first = (which * a.heads.NH + group.head) * kHead;
        a.partials[to / kTileRows * width + first + column] = totals[tile].total(column);
      };
      if constexpr (kOfKeys) {
        store_tiles<2>(a.dqkv, staging, barrier,
                       {head_bytes(a.heads, group.head, 1), head_bytes(a.heads, group.head, 2)}, to,
                       [&](uint8_t* tiles) {
                         stage_tile(tiles, sum, a.scale, a.scale, place);
                         stage_tile(tiles + kTileBytes, value_sum, 1, 1, place);
                         add_up(0, 1);
                         add_up(1, 2);
                       });
      } else {
        store_tiles<1>(a.dqkv, staging, barrier, {head_bytes(a.heads, group.head)}, to, [&](uint8_t* tiles) {
          stage_tile(tiles, sum, a.scale, a.scale, place);
          add_up(0, 0);
        });
      }
    }
  }
  if (threadIdx.x % kWarpgroup == 0) stores_wait_read();
}

// Floats in scratch memory: the column sums of every tile of dqkv.
int64_t partial_sums(const AttentionBackward<bf16>& args) {
  return int64_t{args.B} * args.T / kTileRows * 3 * args.NH * args.HS;
}

} // namespace

bool takes_bias_gradient(const Cuda& cuda, const AttentionBackward<bf16>& args) {
  const int64_t queries = int64_t{args.B} * args.T * args.NH;
  return static_cast<size_t>(2 * queries + partial_sums(args)) * sizeof(float) <= cuda.scratch_bytes;
}

void attention_backward(Cuda& cuda, const AttentionBackward<bf16>& args, float* dbias) {
  const int64_t rows = int64_t{args.B} * args.T, C = int64_t{args.NH} * args.HS, queries = rows * args.NH;
  const Range range(cuda, "attention_backward", 0, 5.0 * static_cast<double>(rows * C) * args.T);
  float* const statistics = cuda.scratch<float>(static_cast<size_t>(2 * queries + (dbias ? partial_sums(args) : 0)));
  BackwardArguments arguments{.qkv = tile_map(args.qkv, rows, 3 * C),
                              .dout = tile_map(args.dout, rows, C),
                              .out = tile_map(args.out, rows, C),
                              .dqkv = tile_map(args.dqkv, rows, 3 * C),
                              .log_sums = args.stats,
                              .log2_sums = statistics,
                              .dots = statistics + queries,
                              .partials = dbias ? statistics + 2 * queries : nullptr,
                              .heads = {},
                              .scale = 1.0f / std::sqrt(static_cast<float>(args.HS))};
  arguments.heads = make_heads(args.B, args.T, args.NH, QueryPass::Layout::kConsumers);
  launch_tiles<QueryPass::Layout>(cuda, attention_backward_kernel<QueryPass>, arguments, "attention_backward_queries");
  arguments.heads = make_heads(args.B, args.T, args.NH, KeyPass::Layout::kConsumers);
  launch_tiles<KeyPass::Layout>(cuda, attention_backward_kernel<KeyPass>, arguments, "attention_backward_keys");
  if (dbias)
    add_column_partials(cuda,
                        {{dbias}, 1, arguments.partials, static_cast<int>(rows / kTileRows), static_cast<int>(3 * C)});
}

} // namespace gpt2::sm90
