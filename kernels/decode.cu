// Incremental decoding: one token per row, so every weight is read for a few FLOPs: bound by bytes.
//
// 124M, one row: 248 MB of BF16 weights, 0.06 ms at 4.2 TB/s; keys and values of 1,024 positions 38 MB, 0.01 ms. A step
// is 6 kernels per block and 3 more, 75 in all, about 2 us each when launched from a graph: more than their bytes.
// LayerNorm, bias, GELU and the residual add are therefore fused.
#include "kernels/decode.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/gelu_math.cuh"
#include "kernels/device/layernorm_affine.cuh"
#include "kernels/layernorm.h"

namespace gpt2 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__global__ void embedding_decode_kernel(EmbeddingDecode<bf16> p, int64_t vectors) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const int row_vectors = p.C / kVector;
  const int64_t token = i / row_vectors, column = i % row_vectors;
  const Float8 word = load8(p.wte, static_cast<int64_t>(p.tokens[token]) * row_vectors + column);
  Float8 out = load8(p.wpe, static_cast<int64_t>(p.slots.positions[token]) * row_vectors + column);
  out += word;
  store8(p.out, i, out);
}

// One thread per 16 bytes of a key and of a value.
__global__ void append_kv_cache_kernel(AppendKvCache<bf16> p, int64_t vectors) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const int head_vectors = p.HS / kVector, row_vectors = p.NH * head_vectors;
  const int64_t token = i / row_vectors, column = i % row_vectors;
  const int64_t head = column / head_vectors, within = column % head_vectors;
  const int64_t row_head = static_cast<int64_t>(p.slots.rows[token]) * p.NH + head;
  const int64_t to = (row_head * p.cache.positions + p.slots.positions[token]) * head_vectors + within;
  const int64_t from = token * 3 * row_vectors + column;
  reinterpret_cast<uint4*>(p.cache.keys)[to] = load_raw(p.qkv, from + row_vectors);
  reinterpret_cast<uint4*>(p.cache.values)[to] = load_raw(p.qkv, from + 2 * row_vectors);
}

// ---- attention: one CTA per token and head ----

// Unnormalized softmax over some of the keys; partial results merge into the whole.
struct PartialSoftmax {
  float highest = -INFINITY, sum = 0;
  Float8 out{}; // this lane's 8 channels
};

// HS / 8 lanes form a group and read a key and its value, 16 bytes each. A group takes every `groups`-th key.
__device__ inline PartialSoftmax attend_to_some(const bf16* keys, const bf16* values, const Float8& query, int visible,
                                                int group, int groups, int lane, int lanes) {
  PartialSoftmax part;
  for (int first = 0; first < visible; first += groups) { // same trip count for all lanes of a warp
    const int j = first + group;
    const bool seen = j < visible;
    const int64_t at = static_cast<int64_t>(seen ? j : 0) * lanes + lane;
    const Float8 key = load8(keys, at), value = load8(values, at);
    float score = 0;
#pragma unroll
    for (int k = 0; k < kVector; ++k) score += query.v[k] * key.v[k];
    for (int offset = lanes / 2; offset > 0; offset /= 2) score += __shfl_xor_sync(0xFFFFFFFFu, score, offset);
    if (!seen) continue;
    const float highest = fmaxf(part.highest, score);
    const float shrink = __expf(part.highest - highest), weight = __expf(score - highest); // exp(-inf) = 0 at first
    part.highest = highest;
    part.sum = part.sum * shrink + weight;
#pragma unroll
    for (int k = 0; k < kVector; ++k) part.out.v[k] = part.out.v[k] * shrink + weight * value.v[k];
  }
  return part;
}

__global__ void __launch_bounds__(kThreads) attention_decode_kernel(AttentionDecode<bf16> p) {
  extern __shared__ float shared[]; // (groups) maxima, (groups) sums, (groups, HS) outputs
  const int lanes = p.HS / kVector, groups = kThreads / lanes;
  const int group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int64_t token = blockIdx.x / p.NH;
  const int head = blockIdx.x % p.NH;
  const int visible = p.slots.positions[token] + 1;
  const int64_t row_head = static_cast<int64_t>(p.slots.rows[token]) * p.NH + head;
  const int64_t from = row_head * p.cache.positions * p.HS;
  float *highest = shared, *sums = highest + groups, *outputs = sums + groups;

  Float8 query = load8(p.qkv, (token * 3 * p.NH + head) * lanes + lane);
  const float scale = rsqrtf(static_cast<float>(p.HS));
#pragma unroll
  for (int k = 0; k < kVector; ++k) query.v[k] *= scale;
  const PartialSoftmax part =
      attend_to_some(p.cache.keys + from, p.cache.values + from, query, visible, group, groups, lane, lanes);
  if (lane == 0) {
    highest[group] = part.highest;
    sums[group] = part.sum;
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) outputs[group * p.HS + lane * kVector + k] = part.out.v[k];
  __syncthreads();

  if (threadIdx.x >= p.HS) return; // HS <= 256
  float top = -INFINITY;
  for (int g = 0; g < groups; ++g) top = fmaxf(top, highest[g]);
  float sum = 0, out = 0;
  for (int g = 0; g < groups; ++g) {
    const float share = __expf(highest[g] - top); // 0 for a group without a key
    sum += share * sums[g];
    out += share * outputs[g * p.HS + threadIdx.x];
  }
  p.out[static_cast<int64_t>(blockIdx.x) * p.HS + threadIdx.x] = __float2bfloat16(out / sum);
}

// ---- linear layers with few rows: one warp per output column ----

// Copies the input to shared memory, normalized if asked. C is small: repeating LayerNorm in some hundred CTAs costs
// less than another kernel. Rounds to BF16 as the LayerNorm kernel does.
__device__ inline void load_inputs(const LinearDecode& p, bf16* inputs) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, vectors = p.C / kVector;
  if (p.ln_weight == nullptr) {
    for (int v = threadIdx.x; v < p.rows * vectors; v += kThreads)
      reinterpret_cast<uint4*>(inputs)[v] = load_raw(p.in, v);
    return;
  }
  for (int row = warp; row < p.rows; row += kWarps) {
    const int64_t first = static_cast<int64_t>(row) * vectors;
    float sum = 0;
    for (int v = lane; v < vectors; v += kWarp) {
      const Float8 x = load8(p.in, first + v);
#pragma unroll
      for (int k = 0; k < kVector; ++k) sum += x.v[k];
    }
    const float mean = warp_sum(sum) / static_cast<float>(p.C);
    float square = 0; // squared deviation: E[x^2] - mean^2 would cancel
    for (int v = lane; v < vectors; v += kWarp) {
      const Float8 x = load8(p.in, first + v);
#pragma unroll
      for (int k = 0; k < kVector; ++k) square += (x.v[k] - mean) * (x.v[k] - mean);
    }
    const float rstd = rsqrtf(warp_sum(square) / static_cast<float>(p.C) + kLayerNormEpsilon);
    for (int v = lane; v < vectors; v += kWarp) {
      store8(inputs, first + v,
             layernorm_affine(load8(p.in, first + v), mean, rstd, load8(p.ln_weight, v), load8(p.ln_bias, v)));
    }
  }
}

template <int Rows>
__global__ void __launch_bounds__(kThreads) linear_decode_kernel(LinearDecode p) {
  extern __shared__ uint4 shared_inputs[]; // (rows, C) in BF16
  bf16* const inputs = reinterpret_cast<bf16*>(shared_inputs);
  load_inputs(p, inputs);
  __syncthreads();

  const int lane = threadIdx.x % kWarp, vectors = p.C / kVector;
  const int column = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (column >= p.OC) return;
  float sums[Rows] = {};
#pragma unroll 4
  for (int v = lane; v < vectors; v += kWarp) {
    const Float8 weight = unpack(load_raw_streaming(p.weight, static_cast<int64_t>(column) * vectors + v));
#pragma unroll
    for (int row = 0; row < Rows; ++row) {
      const Float8 x = load8(inputs, static_cast<int64_t>(row < p.rows ? row : 0) * vectors + v);
#pragma unroll
      for (int k = 0; k < kVector; ++k) sums[row] += weight.v[k] * x.v[k];
    }
  }
  const float bias = p.bias != nullptr ? __bfloat162float(p.bias[column]) : 0.0f;
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
    float value = warp_sum(sums[row]) + bias;
    if (lane != 0 || row >= p.rows) continue;
    const int64_t at = static_cast<int64_t>(row) * p.OC + column;
    if (p.gelu) value = gelu(value, gelu_sigmoid(value));
    if (p.residual != nullptr) value += __bfloat162float(p.residual[at]);
    p.out[at] = __float2bfloat16(value);
  }
}

} // namespace

// ---- launchers ----

void embedding_decode(CudaStream& cuda, const EmbeddingDecode<bf16>& p) {
  const int64_t vectors = p.slots.count * p.C / kVector;
  const NvtxRange range(cuda, "embedding_decode", 6.0 * kVector * static_cast<double>(vectors));
  const Requirements require("embedding_decode");
  require(p.C % kVector == 0, "C is a multiple of 8");
  embedding_decode_kernel<<<grid_size(vectors, kThreads), kThreads, 0, cuda.stream>>>(p, vectors);
  CUDA_CHECK_LAUNCH("embedding_decode");
}

void append_kv_cache(CudaStream& cuda, const AppendKvCache<bf16>& p) {
  const int64_t vectors = p.slots.count * p.NH * p.HS / kVector;
  const NvtxRange range(cuda, "append_kv_cache", 8.0 * kVector * static_cast<double>(vectors));
  const Requirements require("append_kv_cache");
  require(p.HS % kVector == 0, "HS is a multiple of 8");
  append_kv_cache_kernel<<<grid_size(vectors, kThreads), kThreads, 0, cuda.stream>>>(p, vectors);
  CUDA_CHECK_LAUNCH("append_kv_cache");
}

void attention_decode(CudaStream& cuda, const AttentionDecode<bf16>& p) {
  // Bytes of full rows: only the device knows their length.
  const NvtxRange range(cuda, "attention_decode",
                        4.0 * static_cast<double>(p.slots.count) * p.NH * p.HS * p.cache.positions);
  const Requirements require("attention_decode");
  require(gpu_decode_supports_head_size(p.HS), "HS / 8 is a power of two, at most 32");
  const int groups = kThreads / (p.HS / kVector);
  const size_t shared = sizeof(float) * static_cast<size_t>(groups) * static_cast<size_t>(2 + p.HS); // 8 to 10 KB
  attention_decode_kernel<<<static_cast<unsigned>(p.slots.count * p.NH), kThreads, shared, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("attention_decode");
}

namespace {

template <int Rows>
void launch_linear(CudaStream& cuda, const LinearDecode& p) {
  const size_t shared = sizeof(bf16) * static_cast<size_t>(p.rows) * static_cast<size_t>(p.C);
  allow_shared_memory(*cuda.device, linear_decode_kernel<Rows>, shared);
  linear_decode_kernel<Rows><<<grid_size(p.OC, kWarps), kThreads, shared, cuda.stream>>>(p);
}

void launch_rows(CudaStream& cuda, const LinearDecode& p) {
  if (p.rows == 1)
    launch_linear<1>(cuda, p);
  else if (p.rows == 2)
    launch_linear<2>(cuda, p);
  else if (p.rows <= 4)
    launch_linear<4>(cuda, p);
  else
    launch_linear<8>(cuda, p);
  CUDA_CHECK_LAUNCH("linear_decode");
}

} // namespace

// A CTA holds its rows in shared memory. Where they do not fit (8 rows of 6,400 channels in 99 KiB), some at a time.
void linear_decode(CudaStream& cuda, const LinearDecode& p) {
  const double weights = static_cast<double>(p.OC) * p.C;
  const NvtxRange range(cuda, "linear_decode", 2.0 * weights, 2.0 * weights * p.rows);
  const Requirements require("linear_decode");
  require(p.C % kVector == 0, "C is a multiple of 8");
  require(p.rows >= 1 && p.rows <= kMaxDecodeRows, "rows is 1 to 8");
  const int fitting = cuda.device->shared_memory_per_block / (p.C * static_cast<int>(sizeof(bf16)));
  require(fitting >= 1, "a row fits into shared memory");
  const int passes = static_cast<int>(ceil_div(p.rows, fitting)), at_once = static_cast<int>(ceil_div(p.rows, passes));
  for (int row = 0; row < p.rows; row += at_once) {
    LinearDecode part = p;
    part.rows = min(at_once, p.rows - row);
    part.in += static_cast<int64_t>(row) * p.C;
    part.out += static_cast<int64_t>(row) * p.OC;
    if (p.residual) part.residual += static_cast<int64_t>(row) * p.OC;
    launch_rows(cuda, part);
  }
}

} // namespace gpt2
