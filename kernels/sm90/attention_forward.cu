// Causal attention forward in BF16, head dimension 64: O = softmax(scale Q K^T) V with online softmax.
//
// - Tile: m-blocks of 64 queries, n-blocks of 64 keys and values; 4 m-blocks per CTA.
// - Roles: producer warpgroup (24 registers, one thread issues TMA), four consumer warpgroups (112), one m-block each.
// - Pipeline: 5 stages of K and V (16 KB), 2 stages of Q. S of the next n-block is issued before P V of the current
//   one. Persistent causal tile scheduler.
// - Bound: exponentials and the dependency chain of a tile, not the tensor cores. H200, C = 768, T = 1024, 65,536
//   tokens: 0.253 ms (cuDNN 0.305); the FLOPs take 0.140 ms at 736 TFLOP/s.
#include <cmath>

#include "kernels/cuda/profile.h"
#include "kernels/sm90/attention.h"
#include "kernels/sm90/attention_pipeline.cuh"

namespace gpt2::sm90 {
namespace {

constexpr int kConsumers = 4;
static_assert(consumer_registers(kConsumers) >= 32 + 32 + 16, "S, O and P of an m-block live in registers");
using Traits =
    KernelTraits<TileConfig{.consumers = kConsumers, .stages = 5, .row_stages = 2, .row_tensors = 1, .outputs = 1}>;
template <bool kDocuments>
using WorkTileOf = CausalWorkTile<Columns::keys_before, kConsumers, kDocuments>;

struct ForwardArguments {
  CUtensorMap qkv, out;
  float* softmax_lse; // (B, NH, T)
  CausalTileScheduler scheduler;
  float scale;
};

// Online softmax of two rows. row_max: maximum so far of the scores times scale log2(e). row_sum: sum of exponentials
// over this thread's columns. scores_scale: factor for earlier sums when row_max grows.
struct OnlineSoftmax {
  float row_max[2], row_sum[2], scores_scale[2];

  // Turns scores into unnormalized probabilities.
  template <bool kFirst>
  __device__ void update(float (&score)[32], float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = score[2 * r];
#pragma unroll
      for (int i = 1; i < 16; ++i) largest = fmaxf(largest, score[i / 2 * 4 + 2 * r + i % 2]);
      largest = quad_max(largest) * scale_log2;
      if constexpr (kFirst) {
        row_max[r] = largest;
        row_sum[r] = 0;
      } else {
        largest = fmaxf(largest, row_max[r]);
        scores_scale[r] = fast_exp2(row_max[r] - largest);
        row_max[r] = largest;
        row_sum[r] *= scores_scale[r];
      }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      score[i] = fast_exp2(score[i] * scale_log2 - row_max[i / 2 % 2]);
      row_sum[i / 2 % 2] += score[i];
    }
  }
};

template <bool kDocuments>
__device__ void load_tiles(const SharedStorage<Traits>& smem, const ForwardArguments& a) {
  using WorkTile = WorkTileOf<kDocuments>;
  const auto load = [&](uint8_t* to, int which, const WorkTile& work, int tile, ClusterTransactionBarrier& ready) {
    tma_load_2d(to, &a.qkv, ready, head_bytes(a.scheduler, work.head, which), work.row(a.scheduler, tile));
  };
  producer_load<WorkTile>(
      smem, a.scheduler,
      [&](const WorkTile& work, int tile, uint8_t* to, ClusterTransactionBarrier& ready) {
        load(to, 0, work, tile, ready);
      },
      [&](const WorkTile& work, int tile, int stage, ClusterTransactionBarrier& ready) {
        load(smem.columns(stage), 1, work, tile, ready);
        load(smem.columns(stage) + kTileBytes, 2, work, tile, ready);
      });
}

// An m-block in the registers of a consumer warpgroup.
template <bool kDocuments>
struct ForwardMBlock {
  using WorkTile = WorkTileOf<kDocuments>;
  float score[32], out[32]; // S, then P; O
  Fragments p;
  OnlineSoftmax softmax;

  // Mainloop over n-blocks, from the diagonal on.
  __device__ void mma(const ForwardArguments& a, ConsumerPipeline<Traits>& pipeline, const AccumulatorCoord& coord,
                      float scale_log2, const WorkTile& work, int m_block, int first_step, int row_stage) {
    const SharedStorage<Traits>& smem = pipeline.smem;
    [[maybe_unused]] int document_begin[2] = {}; // of the thread's rows
    if constexpr (kDocuments) {
#pragma unroll
      for (int r = 0; r < 2; ++r) document_begin[r] = work.bound(a.scheduler, m_block, coord.row(2 * r));
    }
    const auto mask_documents = [&](int step) {
      const int begin[2] = {work.bound_in(step, document_begin[0]), work.bound_in(step, document_begin[1])};
#pragma unroll
      for (int i = 0; i < 32; ++i)
        if (coord.column(i) < begin[i / 2 % 2]) score[i] = -INFINITY;
    };
    const uint8_t* const query = smem.row_tiles(row_stage, 0) + (m_block - work.first) * kTileBytes;

    int stage = pipeline.consumer_wait(); // n-block whose probabilities are in p
    warpgroup_arrive();
    gemm_nt(score, query, smem.columns(stage));
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(score);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (coord.column(i) > coord.row(i)) score[i] = -INFINITY; // causal mask
      out[i] = 0;
    }
    if constexpr (kDocuments) mask_documents(first_step);
    softmax.update<true>(score, scale_log2);
    pack(p, score);
    const auto add_n_block = [&]<bool kMasked>(int step) {
      const int next = pipeline.consumer_wait();
      warpgroup_arrive();
      gemm_nt(score, query, smem.columns(next));
      warpgroup_commit_batch();
      gemm_nn(out, p, smem.columns(stage) + kTileBytes, false);
      warpgroup_commit_batch();
      warpgroup_wait<1>();
      warpgroup_fence_operand(score);
      if constexpr (kMasked) mask_documents(step);
      softmax.update<false>(score, scale_log2);
      warpgroup_wait<0>();
      warpgroup_fence_operand(out);
      pipeline.consumer_release(stage);
#pragma unroll
      for (int i = 0; i < 32; ++i) out[i] *= softmax.scores_scale[i / 2 % 2];
      pack(p, score);
      stage = next;
    };
    const int end_step = work.end_step(a.scheduler, m_block);
    const int masked_step = kDocuments ? min(work.first_masked_step(a.scheduler, m_block), end_step) : end_step;
    for (int step = first_step + 1; step < masked_step; ++step) add_n_block.template operator()<false>(step);
    if constexpr (kDocuments)
      for (int step = masked_step; step < end_step; ++step) add_n_block.template operator()<true>(step);
    warpgroup_arrive();
    gemm_nn(out, p, smem.columns(stage) + kTileBytes, false);
    warpgroup_commit_batch();
    store_lse(a, coord, work, m_block);
    warpgroup_wait<0>();
    warpgroup_fence_operand(out);
    pipeline.consumer_release(stage);
    if constexpr (kDocuments)
      for (int step = end_step; step < work.n_blocks; ++step) pipeline.consumer_skip();
    pipeline.consumer_release_rows();
  }

  __device__ void store_lse(const ForwardArguments& a, const AccumulatorCoord& coord, const WorkTile& work,
                            int m_block) {
    softmax.row_sum[0] = quad_sum(softmax.row_sum[0]);
    softmax.row_sum[1] = quad_sum(softmax.row_sum[1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t to = work.lse_offset(a.scheduler, m_block) + coord.row(2 * r);
      if (coord.lane % 4 == 0) a.softmax_lse[to] = softmax.row_max[r] * kLn2 + logf(softmax.row_sum[r]);
    }
  }

  // Epilogue: O, divided by the sums of exponentials.
  __device__ void store(const ForwardArguments& a, const SharedStorage<Traits>& smem, const AccumulatorCoord& coord,
                        const WorkTile& work, int m_block, int consumer) const {
    tma_store_tiles<1>(a.out, smem.staging + consumer * Traits::kStagingBytes, epilogue_barrier_id(consumer),
                       {head_bytes(a.scheduler, work.head)}, work.row(a.scheduler, m_block), [&](uint8_t* tile) {
                         store_tile_to_smem(tile, out, 1.0f / softmax.row_sum[0], 1.0f / softmax.row_sum[1], coord);
                       });
  }
};

template <bool kDocuments>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    attention_forward_kernel(const __grid_constant__ ForwardArguments a) {
  extern __shared__ uint8_t dynamic[];
  const SharedStorage<Traits> smem(dynamic);
  smem.init_barriers();
  const int warpgroup = warp_uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == 0) { // producer warpgroup
    warpgroup_reg_dealloc<producer_registers(kConsumers)>();
    if (threadIdx.x == 0) load_tiles<kDocuments>(smem, a);
    return;
  }

  // Consumer warpgroups.
  warpgroup_reg_alloc<consumer_registers(kConsumers)>();
  const int consumer = warpgroup - 1;
  const AccumulatorCoord coord;
  const float scale_log2 = a.scale * kLog2e;
  ConsumerPipeline<Traits> pipeline{smem, {}, {}};
  for (int work_index = blockIdx.x; work_index < a.scheduler.work_tiles; work_index += gridDim.x) {
    for (int index = 0; index < 2; ++index) {
      const WorkTileOf<kDocuments> work(a.scheduler, work_index, index);
      if (!work.exists) continue;
      const int m_block = work.m_block(consumer, index), first_step = work.first_step(m_block);
      for (int step = 0; step < first_step; ++step) pipeline.consumer_skip();
      const int row_stage = pipeline.consumer_wait_rows();
      if (m_block >= work.end) {
        pipeline.consumer_release_rows();
        continue;
      }
      ForwardMBlock<kDocuments> block;
      block.mma(a, pipeline, coord, scale_log2, work, m_block, first_step, row_stage);
      block.store(a, smem, coord, work, m_block, consumer);
    }
  }
  if (threadIdx.x % kWarpgroup == 0) tma_store_wait();
}

} // namespace

bool can_implement_attention(bool sm90_kernels, AttentionKind kind, int B, int T, int HS) {
  return sm90_kernels && kind != AttentionKind::cudnn && HS == kHeadDim && T > 0 && T % kBlockM == 0 &&
         int64_t{B} * T <= INT32_MAX; // TMA coordinates are int
}

void attention_forward(CudaStream& cuda, const AttentionForward<bf16>& args) {
  const int64_t rows = int64_t{args.B} * args.T, C = int64_t{args.NH} * args.HS;
  const NvtxRange range(cuda, "attention_forward", 0, 2.0 * static_cast<double>(rows * C) * args.T);
  const ForwardArguments arguments{
      .qkv = tile_map(args.qkv, rows, 3 * C),
      .out = tile_map(args.out, rows, C),
      .softmax_lse = args.stats,
      .scheduler = make_causal_scheduler(args.B, args.T, args.NH, kConsumers, args.documents.begin),
      .scale = 1.0f / std::sqrt(static_cast<float>(args.HS))};
  launch_persistent<Traits>(cuda, args.documents ? attention_forward_kernel<true> : attention_forward_kernel<false>,
                            arguments, "attention_forward");
}

} // namespace gpt2::sm90
