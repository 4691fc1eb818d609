// Causal attention backward in BF16, head dimension 64, deterministic:
//   P = exp(scale Q K^T - lse), dP = dO V^T, dS = P (dP - dPsum), dPsum = row sums of dO O
//   dQ = scale dS K,  dK = scale dS^T Q,  dV = P^T dO
//
// - Two kernels recompute P: the query pass sums dQ over keys, the key pass sums dK and dV over queries. Seven GEMMs
//   instead of five, but each sum stays in the registers of one warpgroup: no atomics.
// - Tile: m-blocks and n-blocks of 64; 2 m-blocks per CTA, loaded once and kept in registers.
// - Roles: producer warpgroup (40 registers, one TMA thread), two consumer warpgroups (232). Pipeline: 8 stages of 16
// KB.
// - Bound: a warpgroup's chain of 1,500 to 1,800 cycles per tile; tensor cores 52 to 57% busy. H200, C = 768, T = 1024,
//   65,536 tokens: 0.746 ms (cuDNN 1.040); five GEMMs take 0.350 ms at 736 TFLOP/s.
#include <cmath>

#include "kernels/cuda/profile.h"
#include "kernels/cuda/split_reduction.h"
#include "kernels/sm90/attention.h"
#include "kernels/sm90/attention_pipeline.cuh"

namespace gpt2::sm90 {
namespace {

struct BackwardArguments {
  CUtensorMap qkv, dout, out, dqkv;
  const float* softmax_lse;        // (B, NH, T), of the scaled scores
  float *softmax_lse_log2, *dpsum; // (B, NH, T), written by the query pass for the key pass
  float* partials;                 // (B T / 64, 3C): column sums of each tile of dqkv, or null
  CausalTileScheduler scheduler;
  float scale;
};

// Rows: Q, dO, O. Columns: K, V.
struct QueryPass {
  static constexpr Columns kColumns = Columns::keys_before;
  static constexpr bool kOfKeys = false;
  using Traits = KernelTraits<TileConfig{
      .consumers = 2, .stages = 8, .row_stages = 1, .row_tensors = 3, .outputs = 1, .sums = true}>;
};

// Rows: K, V. Columns: Q, dO, and the lse and dPsum of each query.
struct KeyPass {
  static constexpr Columns kColumns = Columns::queries_after;
  static constexpr bool kOfKeys = true;
  static constexpr int kStatisticBytes = kBlockM * static_cast<int>(sizeof(float));
  using Traits = KernelTraits<TileConfig{.consumers = 2,
                                         .stages = 8,
                                         .column_bytes = 2 * kStatisticBytes,
                                         .row_stages = 1,
                                         .row_tensors = 2,
                                         .outputs = 2,
                                         .sums = true}>;
};

// The 16 of 64 column statistics that belong to a thread's accumulators.
__device__ inline void load_columns(float (&values)[16], const uint8_t* from, int lane) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 two = reinterpret_cast<const float2*>(from)[4 * j + lane % 4];
    values[2 * j] = two.x;
    values[2 * j + 1] = two.y;
  }
}

// dPsum of the thread's two rows.
__device__ inline void row_dpsum(float (&dpsum)[2], const Fragments& dout, const Fragments& out) {
  dpsum[0] = dpsum[1] = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 x = unpack_bf16(dout[i / 4][i % 4]), y = unpack_bf16(out[i / 4][i % 4]);
    dpsum[i % 2] += x.x * y.x + x.y * y.y;
  }
#pragma unroll
  for (float& dpsum_of_row : dpsum) dpsum_of_row = quad_sum(dpsum_of_row);
}

template <class Pass, bool kDocuments>
__device__ void load_tiles(const SharedStorage<typename Pass::Traits>& smem, const BackwardArguments& a) {
  using WorkTile = CausalWorkTile<Pass::kColumns, Pass::Traits::kConsumers, kDocuments>;
  constexpr int kGroupBytes = Pass::Traits::kGroupBytes;
  const auto load_qkv = [&](uint8_t* to, int which, const WorkTile& work, int tile, ClusterTransactionBarrier& ready) {
    tma_load_2d(to, &a.qkv, ready, head_bytes(a.scheduler, work.head, which), work.row(a.scheduler, tile));
  };
  const auto load = [&](uint8_t* to, const CUtensorMap& map, const WorkTile& work, int tile,
                        ClusterTransactionBarrier& ready) {
    tma_load_2d(to, &map, ready, head_bytes(a.scheduler, work.head), work.row(a.scheduler, tile));
  };
  producer_load<WorkTile>(
      smem, a.scheduler,
      [&](const WorkTile& work, int tile, uint8_t* to, ClusterTransactionBarrier& ready) {
        if constexpr (Pass::kOfKeys) {
          load_qkv(to, 1, work, tile, ready);
          load_qkv(to + kGroupBytes, 2, work, tile, ready);
        } else {
          load_qkv(to, 0, work, tile, ready);
          load(to + kGroupBytes, a.dout, work, tile, ready);
          load(to + 2 * kGroupBytes, a.out, work, tile, ready);
        }
      },
      [&](const WorkTile& work, int tile, int stage, ClusterTransactionBarrier& ready) {
        uint8_t* const to = smem.columns(stage);
        if constexpr (Pass::kOfKeys) {
          load_qkv(to, 0, work, tile, ready);
          load(to + kTileBytes, a.dout, work, tile, ready);
          const int64_t lse_offset = work.lse_offset(a.scheduler, tile);
          tma_load_1d(smem.column_stats(stage), a.softmax_lse_log2 + lse_offset, Pass::kStatisticBytes, ready);
          tma_load_1d(smem.column_stats(stage) + Pass::kStatisticBytes, a.dpsum + lse_offset, Pass::kStatisticBytes,
                      ready);
        } else {
          load_qkv(to, 1, work, tile, ready);
          load_qkv(to + kTileBytes, 2, work, tile, ready);
        }
      });
}

// An m-block in the registers of a consumer warpgroup.
template <class Pass, bool kDocuments>
struct BackwardMBlock {
  using Traits = typename Pass::Traits;
  using WorkTile = CausalWorkTile<Pass::kColumns, Traits::kConsumers, kDocuments>;
  static constexpr bool kOfKeys = Pass::kOfKeys;
  Fragments row, row_value;     // Q and dO, or K and V
  float sum[32], value_sum[32]; // dQ and unused, or dK and dV
  Fragments p, ds;

  // Operands that stay for all n-blocks; the query pass also computes dPsum and stores it for the key pass.
  __device__ void load_rows(const BackwardArguments& a, ConsumerPipeline<Traits>& pipeline,
                            const AccumulatorCoord& coord, const WorkTile& work, int m_block, int row_stage,
                            const float (&lse)[2], float (&dpsum_of_row)[2]) {
    uint8_t* const tiles = pipeline.smem.row_tiles(row_stage, 0) + (m_block - work.first) * kTileBytes;
    load_fragments(row, tiles, coord);
    load_fragments(row_value, tiles + Traits::kGroupBytes, coord);
    if constexpr (!kOfKeys) {
      Fragments out;
      load_fragments(out, tiles + 2 * Traits::kGroupBytes, coord);
      row_dpsum(dpsum_of_row, row_value, out);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t lse_offset = work.lse_offset(a.scheduler, m_block) + coord.row(2 * r);
        if (coord.lane % 4 == 0) {
          a.softmax_lse_log2[lse_offset] = lse[r];
          a.dpsum[lse_offset] = dpsum_of_row[r];
        }
      }
    }
    pipeline.consumer_release_rows();
  }

  // Mainloop over n-blocks, from the diagonal on.
  __device__ void mma(const BackwardArguments& a, ConsumerPipeline<Traits>& pipeline, const AccumulatorCoord& coord,
                      float scale_log2, const WorkTile& work, int m_block, int first_step,
                      const int (&document_bound)[2], const float (&lse)[2], const float (&dpsum_of_row)[2]) {
    const SharedStorage<Traits>& smem = pipeline.smem;
    int previous = 0;
    const auto add_n_block = [&]<bool kDiagonal, bool kMasked>(int step) {
      const int stage = pipeline.consumer_wait();
      const uint8_t* const column = smem.columns(stage);       // K or Q
      const uint8_t* const column_value = column + kTileBytes; // V or dO
      [[maybe_unused]] float softmax_lse[16], dpsum[16];       // key pass: of the columns
      if constexpr (kOfKeys) load_columns(softmax_lse, smem.column_stats(stage), coord.lane);

      float score[32], dp[32]; // S, then P; dP, then dS
      warpgroup_arrive();
      gemm_nt(score, row, column);
      warpgroup_commit_batch();
      gemm_nt(dp, row_value, column_value);
      warpgroup_commit_batch();
      warpgroup_wait<1>(); // S is complete, and the GEMMs of the previous n-block
      warpgroup_fence_operand(score);
      if (!kDiagonal) pipeline.consumer_release(previous);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float of_query = kOfKeys ? softmax_lse[i / 4 * 2 + i % 2] : lse[i / 2 % 2];
        score[i] = fast_exp2(score[i] * scale_log2 - of_query);
        const bool later = kOfKeys ? coord.row(i) > coord.column(i) : coord.column(i) > coord.row(i);
        if (kDiagonal && later) score[i] = 0; // causal mask
      }
      if constexpr (kMasked) {
        const int bound[2] = {work.bound_in(step, document_bound[0]), work.bound_in(step, document_bound[1])};
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const int column = coord.column(i);
          if (kOfKeys ? column >= bound[i / 2 % 2] : column < bound[i / 2 % 2]) score[i] = 0;
        }
      }
      if constexpr (kOfKeys) {
        load_columns(dpsum, smem.column_stats(stage) + Traits::kColumnBytes / 2, coord.lane);
        pack(p, score);
        warpgroup_arrive();
        gemm_nn(value_sum, p, column_value, kDiagonal);
        warpgroup_commit_batch();
      }
      warpgroup_wait<kOfKeys ? 1 : 0>();
      warpgroup_fence_operand(dp);
#pragma unroll
      for (int i = 0; i < 32; ++i)
        dp[i] = score[i] * (dp[i] - (kOfKeys ? dpsum[i / 4 * 2 + i % 2] : dpsum_of_row[i / 2 % 2]));
      pack(ds, dp);
      warpgroup_arrive();
      gemm_nn(sum, ds, column, kDiagonal);
      warpgroup_commit_batch();
      previous = stage;
    };
    const int end_step = work.end_step(a.scheduler, m_block);
    const int masked_step = kDocuments ? min(work.first_masked_step(a.scheduler, m_block), end_step) : end_step;
    add_n_block.template operator()<true, kDocuments>(first_step);
    for (int step = first_step + 1; step < masked_step; ++step) add_n_block.template operator()<false, false>(step);
    if constexpr (kDocuments)
      for (int step = masked_step; step < end_step; ++step) add_n_block.template operator()<false, true>(step);
    warpgroup_wait<0>();
    warpgroup_fence_operand(sum);
    if constexpr (kOfKeys) warpgroup_fence_operand(value_sum);
    pipeline.consumer_release(previous);
    if constexpr (kDocuments)
      for (int step = end_step; step < work.n_blocks; ++step) pipeline.consumer_skip();
  }

  // Epilogue: dQ, or dK and dV, and their column sums.
  __device__ void store(const BackwardArguments& a, const SharedStorage<Traits>& smem, const AccumulatorCoord& coord,
                        const WorkTile& work, int m_block, int consumer) {
    uint8_t* const staging = smem.staging + consumer * Traits::kStagingBytes;
    auto* const totals = reinterpret_cast<ColumnTotals*>(smem.sums + consumer * Traits::kSumBytes);
    if (a.partials) {
      put_column_sums(totals[0], sum, a.scale, coord);
      if constexpr (kOfKeys) put_column_sums(totals[1], value_sum, 1, coord);
    }
    const int barrier = epilogue_barrier_id(consumer), to = work.row(a.scheduler, m_block);
    const auto add_up = [&](int tile, int which) { // between the barriers of tma_store_tiles()
      const int column = static_cast<int>(threadIdx.x) % kWarpgroup - tile * kHeadDim;
      if (!a.partials || column < 0 || column >= kHeadDim) return;
      const int64_t width = 3 * int64_t{a.scheduler.NH} * kHeadDim,
                    first = (which * a.scheduler.NH + work.head) * kHeadDim;
      a.partials[to / kBlockM * width + first + column] = totals[tile].total(column);
    };
    if constexpr (kOfKeys) {
      tma_store_tiles<2>(a.dqkv, staging, barrier,
                         {head_bytes(a.scheduler, work.head, 1), head_bytes(a.scheduler, work.head, 2)}, to,
                         [&](uint8_t* tiles) {
                           store_tile_to_smem(tiles, sum, a.scale, a.scale, coord);
                           store_tile_to_smem(tiles + kTileBytes, value_sum, 1, 1, coord);
                           add_up(0, 1);
                           add_up(1, 2);
                         });
    } else {
      tma_store_tiles<1>(a.dqkv, staging, barrier, {head_bytes(a.scheduler, work.head)}, to, [&](uint8_t* tiles) {
        store_tile_to_smem(tiles, sum, a.scale, a.scale, coord);
        add_up(0, 0);
      });
    }
  }
};

template <class Pass, bool kDocuments>
__global__ void __launch_bounds__(Pass::Traits::kThreads, 1)
    attention_backward_kernel(const __grid_constant__ BackwardArguments a) {
  using MBlock = BackwardMBlock<Pass, kDocuments>;
  using Traits = typename Pass::Traits;
  extern __shared__ uint8_t dynamic[];
  const SharedStorage<Traits> smem(dynamic);
  smem.init_barriers();
  const int warpgroup = warp_uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == 0) { // producer warpgroup
    warpgroup_reg_dealloc<producer_registers(Traits::kConsumers)>();
    if (threadIdx.x == 0) load_tiles<Pass, kDocuments>(smem, a);
    return;
  }

  // Consumer warpgroups.
  warpgroup_reg_alloc<consumer_registers(Traits::kConsumers)>();
  const int consumer = warpgroup - 1;
  const AccumulatorCoord coord;
  const float scale_log2 = a.scale * kLog2e;
  ConsumerPipeline<Traits> pipeline{smem, {}, {}};
  for (int work_index = blockIdx.x; work_index < a.scheduler.work_tiles; work_index += gridDim.x) {
    for (int index = 0; index < 2; ++index) {
      const typename MBlock::WorkTile work(a.scheduler, work_index, index);
      if (!work.exists) continue;
      const int m_block = work.m_block(consumer, index), first_step = work.first_step(m_block);
      for (int step = 0; step < first_step; ++step) pipeline.consumer_skip();
      float lse[2], dpsum_of_row[2]; // query pass: of the thread's rows
      if (!Pass::kOfKeys && m_block < work.end) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          lse[r] = a.softmax_lse[work.lse_offset(a.scheduler, m_block) + coord.row(2 * r)] * kLog2e;
      }
      const int row_stage = pipeline.consumer_wait_rows();
      if (m_block >= work.end) {
        pipeline.consumer_release_rows();
        continue;
      }
      [[maybe_unused]] int document_bound[2] = {}; // of the thread's rows
      if constexpr (kDocuments) {
#pragma unroll
        for (int r = 0; r < 2; ++r) document_bound[r] = work.bound(a.scheduler, m_block, coord.row(2 * r));
      }
      MBlock block;
      block.load_rows(a, pipeline, coord, work, m_block, row_stage, lse, dpsum_of_row);
      block.mma(a, pipeline, coord, scale_log2, work, m_block, first_step, document_bound, lse, dpsum_of_row);
      block.store(a, smem, coord, work, m_block, consumer);
    }
  }
  if (threadIdx.x % kWarpgroup == 0) tma_store_wait();
}

// Floats of scratch memory for the column sums of every tile of dqkv.
int64_t partial_sums(const AttentionBackward<bf16>& args) {
  return int64_t{args.B} * args.T / kBlockM * 3 * args.NH * args.HS;
}

template <class Pass>
void launch_pass(CudaStream& cuda, const AttentionBackward<bf16>& args, BackwardArguments& arguments,
                 const int32_t* bounds, const char* name) {
  arguments.scheduler = make_causal_scheduler(args.B, args.T, args.NH, Pass::Traits::kConsumers, bounds);
  launch_persistent<typename Pass::Traits>(
      cuda, bounds ? attention_backward_kernel<Pass, true> : attention_backward_kernel<Pass, false>, arguments, name);
}

} // namespace

bool can_fuse_bias_gradient(const CudaStream& cuda, const AttentionBackward<bf16>& args) {
  const int64_t queries = int64_t{args.B} * args.T * args.NH;
  return static_cast<size_t>(2 * queries + partial_sums(args)) * sizeof(float) <= cuda.scratch_bytes;
}

void attention_backward(CudaStream& cuda, const AttentionBackward<bf16>& args, float* dbias) {
  const int64_t rows = int64_t{args.B} * args.T, C = int64_t{args.NH} * args.HS, queries = rows * args.NH;
  const NvtxRange range(cuda, "attention_backward", 0, 5.0 * static_cast<double>(rows * C) * args.T);
  float* const statistics = cuda.scratch<float>(static_cast<size_t>(2 * queries + (dbias ? partial_sums(args) : 0)));
  BackwardArguments arguments{.qkv = tile_map(args.qkv, rows, 3 * C),
                              .dout = tile_map(args.dout, rows, C),
                              .out = tile_map(args.out, rows, C),
                              .dqkv = tile_map(args.dqkv, rows, 3 * C),
                              .softmax_lse = args.stats,
                              .softmax_lse_log2 = statistics,
                              .dpsum = statistics + queries,
                              .partials = dbias ? statistics + 2 * queries : nullptr,
                              .scheduler = {},
                              .scale = 1.0f / std::sqrt(static_cast<float>(args.HS))};
  launch_pass<QueryPass>(cuda, args, arguments, args.documents.begin, "attention_backward_queries");
  launch_pass<KeyPass>(cuda, args, arguments, args.documents.end, "attention_backward_keys");
  if (dbias)
    add_column_partials(cuda,
                        {{dbias}, 1, arguments.partials, static_cast<int>(rows / kBlockM), static_cast<int>(3 * C)});
}

} // namespace gpt2::sm90
