// Causal attention with mma.sync for any GPU from compute capability 8.0, without cuDNN: tiles of 64 queries or keys,
// four warps of 16 rows, online softmax. The backward pass computes the probabilities twice, by key tile (dK, dV) and
// by query tile (dQ), so that each sum has one owner: no atomics, deterministic.
#include "kernels/attention.h"

#include <cuda_bf16.h>

#include <cmath>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/mma.cuh"
#include "kernels/device/softmax.cuh"
#include "kernels/device/vector.cuh"

namespace gpt2 {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 64; // rows per CTA: 16 per warp

// Columns per iteration. In the backward pass two score tiles live beside the accumulators: at D = 128 registers
// suffice for 32 columns only.
constexpr int kForwardColumns = 64;
template <int D>
constexpr int kBackwardColumns = D <= 64 ? 64 : 32;

// One head of one sequence in a (B, T, ...) tensor: row t starts at base + t * stride.
template <class T>
struct HeadRows {
  T* base;
  int64_t stride;
};

template <class Element> // of qkv or its gradient
__device__ HeadRows<Element> head_of_qkv(Element* qkv, int which, int T, int NH, int HS) {
  const int64_t C = int64_t{NH} * HS;
  return {qkv + int64_t{blockIdx.z} * T * 3 * C + which * C + int64_t{blockIdx.y} * HS, 3 * C};
}
template <class Element>
__device__ HeadRows<Element> head_of_output(Element* out, int T, int NH, int HS) {
  const int64_t C = int64_t{NH} * HS;
  return {out + int64_t{blockIdx.z} * T * C + int64_t{blockIdx.y} * HS, C};
}
__device__ int64_t first_statistic(int T, int NH) { return (int64_t{blockIdx.z} * NH + blockIdx.y) * T; }

// Loads rows first.. of a head into a tile (kCount, D) with cp.async; zeros beyond T rows and HS columns.
template <int kCount, int D>
__device__ void load_rows(bf16* tile, HeadRows<const bf16> head, int first, int T, int HS) {
  constexpr int kChunks = D / 8; // 16 bytes each
  for (int i = threadIdx.x; i < kCount * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool inside = first + row < T && column < HS;
    const bf16* from = inside ? head.base + (first + row) * head.stride + column : head.base;
    cp_async_16(tile + row * kPitch<D> + column, from, inside);
  }
}

// Stores a warp's accumulators (16, D), scaled per row, to rows first.. of a head. `staging` is (16, D) of shared
// memory of this warp: it turns 4-byte fragments into 16-byte stores.
template <int D>
__device__ void store_rows(HeadRows<bf16> head, int first, const float (&c)[D / 8][4], float low_factor,
                           float high_factor, bf16* staging, int T, int HS, int lane) {
  __syncwarp();
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    bf16* low = staging + lane / 4 * kPitch<D> + 8 * j + 2 * (lane % 4);
    bf16* high = low + 8 * kPitch<D>;
    *reinterpret_cast<uint32_t*>(low) = pack_bf16(c[j][0] * low_factor, c[j][1] * low_factor);
    *reinterpret_cast<uint32_t*>(high) = pack_bf16(c[j][2] * high_factor, c[j][3] * high_factor);
  }
  __syncwarp();
  constexpr int kChunks = D / 8;
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int row = i / kChunks, column = i % kChunks * 8;
    if (first + row >= T || column >= HS) continue;
    *reinterpret_cast<uint4*>(head.base + (first + row) * head.stride + column) =
        *reinterpret_cast<const uint4*>(staging + row * kPitch<D> + column);
  }
}

// out and stats of 64 queries; the grid is (query tiles, NH, B). Longest rows first. Within documents the tiles run
// from the diagonal to the left: every row then sees a key in its first tile.
template <int D, bool kDocuments>
__global__ __launch_bounds__(kThreads) void attention_forward_kernel(bf16* out, float* stats, const bf16* qkv, int T,
                                                                     int NH, int HS, float scale,
                                                                     DocumentBounds documents) {
  constexpr int kColumns = kForwardColumns;
  extern __shared__ __align__(16) bf16 shared[];
  bf16* q_tile = shared;                     // (64, D)
  bf16* k_tile = q_tile + kRows * kPitch<D>; // 2 x (kColumns, D): one in use, one arriving
  bf16* v_tile = k_tile + 2 * kColumns * kPitch<D>;
  const auto q = head_of_qkv(qkv, 0, T, NH, HS), k = head_of_qkv(qkv, 1, T, NH, HS), v = head_of_qkv(qkv, 2, T, NH, HS);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_query = (gridDim.x - 1 - blockIdx.x) * kRows;
  const int tiles = (min(first_query + kRows, T) + kColumns - 1) / kColumns;
  const int32_t* const begins = documents.begin + int64_t{blockIdx.z} * T; // of documents; null without
  const int first_tile = kDocuments ? begins[first_query] / kColumns : 0;
  [[maybe_unused]] int begin_of_row[2] = {};
  if constexpr (kDocuments)
    for (int r = 0; r < 2; ++r) begin_of_row[r] = begins[min(first_query + warp * 16 + lane / 4 + 8 * r, T - 1)];
  const auto load_keys = [&](int tile) {
    const int buffer = tile % 2 * kColumns * kPitch<D>;
    load_rows<kColumns, D>(k_tile + buffer, k, tile * kColumns, T, HS);
    load_rows<kColumns, D>(v_tile + buffer, v, tile * kColumns, T, HS);
    cp_async_commit();
  };

  float o[D / 8][4] = {};
  float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0, 0}; // rows lane/4 and lane/4 + 8
  const float scale_log2 = scale * kLog2e;
  load_rows<kRows, D>(q_tile, q, first_query, T, HS);
  load_keys(kDocuments ? tiles - 1 : 0);
  for (int step = first_tile; step < tiles; ++step) {
    const int tile = kDocuments ? tiles - 1 - (step - first_tile) : step;
    if (step + 1 < tiles) {
      load_keys(kDocuments ? tile - 1 : tile + 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    const int buffer = tile % 2 * kColumns * kPitch<D>;
    float s[kColumns / 8][4] = {};
    warp_gemm_nt<kColumns, D>(s, q_tile + warp * 16 * kPitch<D>, k_tile + buffer, lane);

    if (kDocuments || (tile + 1) * kColumns > first_query) { // causal mask on the diagonal, documents anywhere
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int query = first_query + warp * 16 + lane / 4 + i / 2 * 8;
          const int key = tile * kColumns + 8 * j + 2 * (lane % 4) + i % 2;
          if (key > query || (kDocuments && key < begin_of_row[i / 2])) s[j][i] = -INFINITY;
        }
      }
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = row_max[r];
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) largest = fmaxf(largest, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      largest = quad_max(largest);
      const float scores_scale = fast_exp2((row_max[r] - largest) * scale_log2); // 0 in the first iteration
      row_max[r] = largest;
      row_sum[r] *= scores_scale;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        o[j][2 * r] *= scores_scale;
        o[j][2 * r + 1] *= scores_scale;
      }
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[j][i] = fast_exp2(s[j][i] * scale_log2 - largest * scale_log2);
          row_sum[r] += s[j][i];
        }
      }
    }
    warp_gemm_rs<kColumns, D>(o, s, v_tile + buffer, lane);
    __syncthreads(); // the next iteration loads into this buffer
  }

  const int first_row = first_query + warp * 16;
  for (int r = 0; r < 2; ++r) {
    row_sum[r] = quad_sum(row_sum[r]);
    const int row = first_row + lane / 4 + 8 * r;
    if (lane % 4 == 0 && row < T) stats[first_statistic(T, NH) + row] = row_max[r] * scale + logf(row_sum[r]);
  }
  store_rows<D>(head_of_output(out, T, NH, HS), first_row, o, 1.0f / row_sum[0], 1.0f / row_sum[1],
                q_tile + warp * 16 * kPitch<D>, T, HS, lane);
}

// dpsum (B, NH, T) = sum over a head of dout * out; 16 threads a row. The grid covers B * T * NH rows.
__global__ void attention_dpsum_kernel(float* dpsum, const bf16* dout, const bf16* out, int64_t rows, int T, int NH,
                                       int HS) {
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 16; // (b * T + t) * NH + head
  const int column = threadIdx.x % 16 * kVector;
  float sum = 0;
  if (row < rows && column < HS) {
    const Float8 a = load8(dout + row * HS, column / kVector), b = load8(out + row * HS, column / kVector);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += a.v[i] * b.v[i];
  }
  for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
  if (row < rows && threadIdx.x % 16 == 0) {
    const int64_t position = row / NH, head = row % NH;
    dpsum[(position / T * NH + head) * T + position % T] = sum;
  }
}

// Inputs of both backward kernels.
struct BackwardInputs {
  const bf16* qkv;
  const bf16* dout;
  const float* stats; // (B, NH, T)
  const float* dpsum; // (B, NH, T)
  int T, NH, HS;
  float scale;
  DocumentBounds documents;
};

// dP to dS = P (dP - dPsum).
template <bool kOfKeys, int kColumns>
__device__ void to_score_gradient(float (&ds)[kColumns / 8][4], const float (&p)[kColumns / 8][4],
                                  const float* dpsum_of_column, const float (&dpsum_of_row)[2], int lane) {
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * j + 2 * (lane % 4) + i % 2;
      ds[j][i] = p[j][i] * (ds[j][i] - (kOfKeys ? dpsum_of_column[column] : dpsum_of_row[i / 2]));
    }
  }
}

// dK and dV of 64 keys over all queries from the first of them; or dQ of 64 queries over all keys up to the last of
// them. A CTA owns 64 rows of the score gradient, operand A of the sums over columns; for keys the scores are
// transposed, (keys, queries). The grid is (tiles, NH, B), longest rows first.
template <int D, bool kOfKeys, bool kDocuments>
__global__ __launch_bounds__(kThreads) void attention_backward_kernel(bf16* dqkv, BackwardInputs x) {
  constexpr int kColumns = kBackwardColumns<D>;
  static_assert(kRows % kColumns == 0, "a block's first column is the first of a tile");
  extern __shared__ __align__(16) bf16 shared[];
  bf16* row_tile = shared;                                // (64, D): K or Q
  bf16* row_value_tile = row_tile + kRows * kPitch<D>;    // (64, D): V or dO
  bf16* column_tile = row_value_tile + kRows * kPitch<D>; // 2 x (kColumns, D), one in use, one arriving: Q or K
  bf16* column_value_tile = column_tile + 2 * kColumns * kPitch<D>;                           // the same: dO or V
  float* stats_tile = reinterpret_cast<float*>(column_value_tile + 2 * kColumns * kPitch<D>); // kOfKeys: 2 x (kColumns)
  float* dpsum_tile = stats_tile + 2 * kColumns;
  const int T = x.T, NH = x.NH, HS = x.HS;
  const auto q = head_of_qkv(x.qkv, 0, T, NH, HS), k = head_of_qkv(x.qkv, 1, T, NH, HS),
             v = head_of_qkv(x.qkv, 2, T, NH, HS), dout = head_of_output(x.dout, T, NH, HS);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = (kOfKeys ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * kRows;
  const int last_row = min(first_row + kRows, T) - 1;
  const int32_t* const bounds = // a key's document ends, a query's begins there; null without documents
      (kOfKeys ? x.documents.end : x.documents.begin) + int64_t{blockIdx.z} * T;
  const int first_column = kOfKeys ? first_row : kDocuments ? bounds[first_row] / kColumns * kColumns : 0;
  const int end = !kOfKeys ? last_row + 1 : kDocuments ? bounds[last_row] : T;
  [[maybe_unused]] int bound_of_row[2] = {};
  if constexpr (kDocuments)
    for (int r = 0; r < 2; ++r) bound_of_row[r] = bounds[min(first_row + warp * 16 + lane / 4 + 8 * r, T - 1)];
  const auto load_columns = [&](int first, int buffer) {
    load_rows<kColumns, D>(column_tile + buffer * kColumns * kPitch<D>, kOfKeys ? q : k, first, T, HS);
    load_rows<kColumns, D>(column_value_tile + buffer * kColumns * kPitch<D>, kOfKeys ? dout : v, first, T, HS);
    if constexpr (kOfKeys) {
      for (int i = threadIdx.x; i < kColumns; i += kThreads) {
        const bool inside = first + i < T;
        const int64_t from = first_statistic(T, NH) + (inside ? first + i : 0);
        cp_async_4(stats_tile + buffer * kColumns + i, x.stats + from, inside);
        cp_async_4(dpsum_tile + buffer * kColumns + i, x.dpsum + from, inside);
      }
    }
    cp_async_commit();
  };

  float lse[2] = {}, dpsum_of_row[2] = {}; // query pass: rows lane/4 and lane/4 + 8
  for (int r = 0; r < 2; ++r) {
    const int query = first_row + warp * 16 + lane / 4 + 8 * r;
    if (kOfKeys || query >= T) continue;
    lse[r] = x.stats[first_statistic(T, NH) + query];
    dpsum_of_row[r] = x.dpsum[first_statistic(T, NH) + query];
  }

  float drow[D / 8][4] = {}, dvalue[D / 8][4] = {}; // dK and dV, or dQ and unused
  load_rows<kRows, D>(row_tile, kOfKeys ? k : q, first_row, T, HS);
  load_rows<kRows, D>(row_value_tile, kOfKeys ? v : dout, first_row, T, HS);
  load_columns(first_column, 0);
  int buffer = 0;
  for (int first = first_column; first < end; first += kColumns, buffer ^= 1) {
    if (first + kColumns < end) {
      load_columns(first + kColumns, buffer ^ 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    const bf16* columns = column_tile + buffer * kColumns * kPitch<D>;
    const bf16* column_values = column_value_tile + buffer * kColumns * kPitch<D>;

    float p[kColumns / 8][4] = {}; // scores, then probabilities
    warp_gemm_nt<kColumns, D>(p, row_tile + warp * 16 * kPitch<D>, columns, lane);
    const bool masked =
        kDocuments || (kOfKeys ? first < first_row + kRows || first + kColumns > T : first + kColumns > first_row);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * j + 2 * (lane % 4) + i % 2, row = first_row + warp * 16 + lane / 4 + i / 2 * 8;
        const int query = kOfKeys ? first + column : row, key = kOfKeys ? row : first + column;
        const float of_query = kOfKeys ? stats_tile[buffer * kColumns + column] : lse[i / 2];
        p[j][i] = fast_exp2((p[j][i] * x.scale - of_query) * kLog2e);
        const bool foreign =
            kDocuments && (kOfKeys ? query >= bound_of_row[i / 2] : key < bound_of_row[i / 2]); // another document
        if (masked && (key > query || (kOfKeys && query >= T) || foreign)) p[j][i] = 0;
      }
    }
    if constexpr (kOfKeys) warp_gemm_rs<kColumns, D>(dvalue, p, column_values, lane);

    float ds[kColumns / 8][4] = {}; // dP, then dS
    warp_gemm_nt<kColumns, D>(ds, row_value_tile + warp * 16 * kPitch<D>, column_values, lane);
    to_score_gradient<kOfKeys, kColumns>(ds, p, dpsum_tile + buffer * kColumns, dpsum_of_row, lane);
    warp_gemm_rs<kColumns, D>(drow, ds, columns, lane);
    __syncthreads(); // the next iteration loads into these buffers
  }

  const int first_own = first_row + warp * 16;
  store_rows<D>(head_of_qkv(dqkv, kOfKeys ? 1 : 0, T, NH, HS), first_own, drow, x.scale, x.scale,
                row_tile + warp * 16 * kPitch<D>, T, HS, lane);
  if constexpr (kOfKeys) {
    store_rows<D>(head_of_qkv(dqkv, 2, T, NH, HS), first_own, dvalue, 1, 1, row_value_tile + warp * 16 * kPitch<D>, T,
                  HS, lane);
  }
}

// -------------------------------------------------------------------------------------------------- launchers

constexpr int kMaxBlocks = 65535; // limit of gridDim.y and gridDim.z

dim3 grid_of(int T, int NH, int B) {
  return dim3(grid_size(T, kRows), static_cast<unsigned>(NH), static_cast<unsigned>(B));
}

template <int D>
void launch_forward(CudaStream& cuda, const AttentionForward<bf16>& a) {
  const Requirements require("attention_forward");
  require(a.B <= kMaxBlocks && a.NH <= kMaxBlocks, "B and NH are at most 65535");
  const size_t bytes = (kRows + 4 * kForwardColumns) * kPitch<D> * sizeof(bf16);
  const auto kernel = a.documents ? attention_forward_kernel<D, true> : attention_forward_kernel<D, false>;
  allow_shared_memory(*cuda.device, kernel, bytes);
  kernel<<<grid_of(a.T, a.NH, a.B), kThreads, bytes, cuda.stream>>>(
      a.out, a.stats, a.qkv, a.T, a.NH, a.HS, 1.0f / std::sqrt(static_cast<float>(a.HS)), a.documents);
  CUDA_CHECK_LAUNCH("attention_forward");
}

template <int D, bool kOfKeys>
void launch_backward_half(CudaStream& cuda, bf16* dqkv, const BackwardInputs& x, int B) {
  constexpr int kColumns = kBackwardColumns<D>;
  constexpr size_t kTiles = (2 * kRows + 4 * kColumns) * kPitch<D> * sizeof(bf16);
  constexpr size_t kBytes = kTiles + (kOfKeys ? 4 * kColumns * sizeof(float) : 0);
  const auto kernel =
      x.documents ? attention_backward_kernel<D, kOfKeys, true> : attention_backward_kernel<D, kOfKeys, false>;
  allow_shared_memory(*cuda.device, kernel, kBytes);
  kernel<<<grid_of(x.T, x.NH, B), kThreads, kBytes, cuda.stream>>>(dqkv, x);
  CUDA_CHECK_LAUNCH(kOfKeys ? "attention_backward_keys" : "attention_backward_queries");
}

template <int D>
void launch_backward(CudaStream& cuda, const AttentionBackward<bf16>& a) {
  const Requirements require("attention_backward");
  require(a.B <= kMaxBlocks && a.NH <= kMaxBlocks, "B and NH are at most 65535");
  const int64_t rows = int64_t{a.B} * a.T * a.NH;
  float* dpsum = cuda.scratch<float>(static_cast<size_t>(rows));
  constexpr int kRowsPerBlock = 16; // 16 threads each
  attention_dpsum_kernel<<<grid_size(rows, kRowsPerBlock), 16 * kRowsPerBlock, 0, cuda.stream>>>(dpsum, a.dout, a.out,
                                                                                                 rows, a.T, a.NH, a.HS);
  CUDA_CHECK_LAUNCH("attention_dots");

  const float scale = 1.0f / std::sqrt(static_cast<float>(a.HS));
  const BackwardInputs inputs{a.qkv, a.dout, a.stats, dpsum, a.T, a.NH, a.HS, scale, a.documents};
  launch_backward_half<D, true>(cuda, a.dqkv, inputs, a.B);
  launch_backward_half<D, false>(cuda, a.dqkv, inputs, a.B);
}

void check_head_size(int HS) {
  if (HS >= 8 && HS <= 128 && HS % 8 == 0) return;
  throw Error(ExitCode::usage, "attention heads of " + std::to_string(HS) + " channels are not supported on the GPU",
              "choose a number of heads that makes channels per head a multiple of 8, at most 128");
}

// FLOPs of one T x T x HS GEMM per head without the upper triangle. Forward has two of them, backward five.
double causal_gemm_flops(int B, int T, int NH, int HS) { return static_cast<double>(B) * NH * HS * T * T; }

} // namespace

void attention_forward(CudaStream& cuda, const AttentionForward<bf16>& args) {
  const NvtxRange range(cuda, "attention_forward", 0, 2 * causal_gemm_flops(args.B, args.T, args.NH, args.HS));
  if (!args.documents && cuda.device->attentions->forward(cuda, args)) return; // cuDNN has no mask of documents
  check_head_size(args.HS);
  if (args.HS <= 32) return launch_forward<32>(cuda, args);
  if (args.HS <= 64) return launch_forward<64>(cuda, args);
  launch_forward<128>(cuda, args);
}

void attention_backward(CudaStream& cuda, const AttentionBackward<bf16>& args) {
  const NvtxRange range(cuda, "attention_backward", 0, 5 * causal_gemm_flops(args.B, args.T, args.NH, args.HS));
  if (!args.documents && cuda.device->attentions->backward(cuda, args)) return;
  check_head_size(args.HS);
  if (args.HS <= 32) return launch_backward<32>(cuda, args);
  if (args.HS <= 64) return launch_backward<64>(cuda, args);
  launch_backward<128>(cuda, args);
}

} // namespace gpt2
