// Causal attention: rows are queries, columns keys with their values. While one column's probabilities weight its
// values, the next column's scores are multiplied; the sums are rescaled where a row's maximum grows.
#include <cmath>

#include "kernels/cuda/profile.h"
#include "kernels/sm90/attention.h"
#include "kernels/sm90/attention_tiles.cuh"

namespace gpt2::sm90 {
namespace {

constexpr int kConsumers = 4;
using Layout =
    TileLayout<TileCounts{.consumers = kConsumers, .stages = 5, .row_stages = 2, .row_tensors = 1, .outputs = 1}>;
using Group = TileGroup<Columns::keys_before, kConsumers>;

struct ForwardArguments {
  CUtensorMap qkv, out;
  float* log_sums; // (B, NH, T)
  Heads heads;
  float scale;
};

// The softmax of two rows, a column tile at a time: the maximum so far of scaled scores to base 2, the sum of
// exponentials below it of this thread's columns, and what sums before a new maximum have to be multiplied by.
struct RunningSoftmax {
  float maximum[2], total[2], correction[2];

  // Scores become probabilities, up to the row's total.
  template <bool kFirst>
  __device__ void add(float (&score)[32], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = score[2 * r];
#pragma unroll
      for (int i = 1; i < 16; ++i) largest = fmaxf(largest, score[i / 2 * 4 + 2 * r + i % 2]);
      largest = row_maximum(largest) * scale_log2;
      if constexpr (kFirst) {
        maximum[r] = largest;
        total[r] = 0;
      } else {
        largest = fmaxf(largest, maximum[r]);
        correction[r] = fast_exp2(maximum[r] - largest);
        maximum[r] = largest;
        total[r] *= correction[r];
      }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      score[i] = fast_exp2(score[i] * scale_log2 - maximum[i / 2 % 2]);
      total[i / 2 % 2] += score[i];
    }
  }
};

__global__ void __launch_bounds__(Layout::kThreads, 1)
    attention_forward_kernel(const __grid_constant__ ForwardArguments a) {
  extern __shared__ uint8_t dynamic[];
  const TileMemory<Layout> memory(dynamic);
  memory.init_barriers();
  const int warpgroup = uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == 0) {
    give_registers<copy_registers(kConsumers)>();
    if (threadIdx.x != 0) return;
    const auto load = [&](uint8_t* to, int which, const Group& group, int tile, Barrier& ready) {
      load_box(to, &a.qkv, ready, head_bytes(a.heads, group.head, which), group.row(a.heads, tile));
    };
    copy_tiles<Group>(
        memory, a.heads,
        [&](const Group& group, int tile, uint8_t* to, Barrier& ready) { load(to, 0, group, tile, ready); },
        [&](const Group& group, int tile, int stage, Barrier& ready) {
          load(memory.columns(stage), 1, group, tile, ready);
          load(memory.columns(stage) + kTileBytes, 2, group, tile, ready);
        });
    return;
  }

  take_registers<product_registers(kConsumers)>();
  const int consumer = warpgroup - 1;
  const Place place;
  const float scale_log2 = a.scale * kLog2e;
  TileReader<Layout> reader{memory, {}, {}};
  for (int unit = blockIdx.x; unit < a.heads.units; unit += gridDim.x) {
    for (int index = 0; index < 2; ++index) {
      const Group group(a.heads, unit, index);
      if (!group.exists) continue;
      const int own = group.own(consumer, index), first_step = group.first_step(own);
      for (int step = 0; step < first_step; ++step) reader.skip_columns();
      const int row_stage = reader.await_rows();
      if (own >= group.end) {
        reader.release_rows();
        continue;
      }
      const uint8_t* const query = memory.group(row_stage, 0) + (own - group.first) * kTileBytes;

      float score[32], out[32];
      Fragments p;
      RunningSoftmax softmax;
      int stage = reader.await_columns(); // of the column whose probabilities are in p
      products_begin();
      multiply_tiles(score, query, memory.columns(stage));
      products_commit();
      products_wait<0>();
      keep_order(score);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (place.column(i) > place.row(i)) score[i] = -INFINITY; // on the diagonal no query sees a later key
        out[i] = 0;
      }
      softmax.add<true>(score, scale_log2);
      pack(p, score);
      for (int step = first_step + 1; step < group.columns; ++step) {
        const int next = reader.await_columns();
        products_begin();
        multiply_tiles(score, query, memory.columns(next));
        products_commit();
        sum_tile(out, p, memory.columns(stage) + kTileBytes, false);
        products_commit();
        products_wait<1>();
        keep_order(score);
        softmax.add<false>(score, scale_log2);
        products_wait<0>();
        keep_order(out);
        reader.release(stage);
#pragma unroll
        for (int i = 0; i < 32; ++i) out[i] *= softmax.correction[i / 2 % 2];
        pack(p, score);
        stage = next;
      }
      products_begin();
      sum_tile(out, p, memory.columns(stage) + kTileBytes, false);
      products_commit();
      const float total[2] = {row_total(softmax.total[0]), row_total(softmax.total[1])};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t to = group.query(a.heads, own) + place.row(2 * r);
        if (place.lane % 4 == 0) a.log_sums[to] = softmax.maximum[r] * kLn2 + logf(total[r]);
      }
      products_wait<0>();
      keep_order(out);
      reader.release(stage);
      reader.release_rows();
      store_tiles<1>(a.out, memory.staging + consumer * Layout::kStagingBytes, epilogue_barrier(consumer),
                     {head_bytes(a.heads, group.head)}, group.row(a.heads, own),
                     [&](uint8_t* tile) { stage_tile(tile, out, 1.0f / total[0], 1.0f / total[1], place); });
    }
  }
  if (threadIdx.x % kWarpgroup == 0) stores_wait_read();
}

} // namespace

bool takes_attention(int compute_capability, AttentionKind kind, int B, int T, int HS) {
  return compute_capability == 90 && kind != AttentionKind::cudnn && HS == kHead && T > 0 && T % kTileRows == 0 &&
         int64_t{B} * T <= INT32_MAX; // coordinates of copies are int
}

void attention_forward(Cuda& cuda, const AttentionForward<bf16>& args) {
  const int64_t rows = int64_t{args.B} * args.T, C = int64_t{args.NH} * args.HS;
  const Range range(cuda, "attention_forward", 0, 2.0 * static_cast<double>(rows * C) * args.T);
  const ForwardArguments arguments{.qkv = tile_map(args.qkv, rows, 3 * C),
                                   .out = tile_map(args.out, rows, C),
                                   .log_sums = args.stats,
                                   .heads = make_heads(args.B, args.T, args.NH, kConsumers),
                                   .scale = 1.0f / std::sqrt(static_cast<float>(args.HS))};
  launch_tiles<Layout>(cuda, attention_forward_kernel, arguments, "attention_forward");
}

} // namespace gpt2::sm90
