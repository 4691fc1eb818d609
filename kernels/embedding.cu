// Token + position embedding. The backward pass sorts the tokens; one CTA then sums each row of wte in token order:
// deterministic, no atomics, no host work.
#include "kernels/embedding.h"

#include <cuda_bf16.h>

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {

namespace {

__global__ void embedding_forward_kernel(EmbeddingForward<bf16> p, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; // index of the vector
  if (i >= count) return;
  const int vectors = p.C / kVector;
  const int64_t row = i / vectors;
  const int column = static_cast<int>(i % vectors);
  const Float8 token = load8(p.wte, static_cast<int64_t>(p.tokens[row]) * vectors + column);
  Float8 out = load8(p.wpe, (p.positions ? p.positions[row] : row % p.T) * vectors + column);
  out += token;
  store8(p.out, i, out);
}

__device__ inline void add_to(float* target, const Float8& values) {
#pragma unroll
  for (int k = 0; k < kVector; ++k) target[k] += values.v[k];
}

// dwpe[t] += sum over the batch, in order.
__global__ void position_gradient_kernel(EmbeddingBackward<bf16> p, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; // vectors of one sequence
  if (i >= count) return;
  Float8 sum{};
#pragma unroll 8
  for (int b = 0; b < p.B; ++b) sum += load8(p.dout, b * count + i);
  add_to(p.dwpe + i * kVector, sum);
}

__global__ void iota_kernel(int32_t* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = i;
}

// The sorted tokens are divided into chunks of kChunk positions. A run of equal tokens inside one chunk goes straight
// to dwte. A run that crosses a border leaves one partial sum per chunk: in `head` if it continues from the chunk
// before, else in `tail`. A second kernel adds them in order.
constexpr int kChunk = 64;
constexpr int kMaxChannels = 1024 * kVector; // one thread per vector

struct Sorted {
  const int32_t* tokens;    // (count) ascending
  const int32_t* positions; // (count) original positions; ascending among equal tokens
  int count;
};

// Sum of one run's rows for the thread's 8 columns. Eight loads in flight.
__device__ inline Float8 sum_rows(const bf16* dout, const int32_t* positions, int count, int vectors, int column) {
  Float8 sum{};
#pragma unroll 8
  for (int i = 0; i < count; ++i) sum += load8(dout, static_cast<int64_t>(positions[i]) * vectors + column);
  return sum;
}

// partials: (chunks, 2, C): head, tail
__global__ void token_gradient_kernel(EmbeddingBackward<bf16> p, Sorted sorted, float* partials) {
  const int vectors = p.C / kVector, column = threadIdx.x;
  if (column >= vectors) return;
  const int begin = blockIdx.x * kChunk, end = min(sorted.count, begin + kChunk);
  for (int run = begin; run < end;) {
    const int token = sorted.tokens[run];
    int stop = run + 1;
    while (stop < end && sorted.tokens[stop] == token) ++stop;
    const bool from_before = run == begin && begin > 0 && sorted.tokens[begin - 1] == token;
    const bool continues = stop == end && end < sorted.count && sorted.tokens[end] == token;
    const Float8 sum = sum_rows(p.dout, sorted.positions + run, stop - run, vectors, column);
    if (!from_before && !continues) {
      add_to(p.dwte + static_cast<int64_t>(token) * p.C + column * kVector, sum);
    } else {
      const int slot = from_before ? 0 : 1;
      store8(partials + (static_cast<int64_t>(blockIdx.x) * 2 + slot) * p.C + column * kVector, 0, sum);
    }
    run = stop;
  }
}

// CTA b finishes the run that starts in chunk b and crosses its end.
__global__ void join_runs_kernel(EmbeddingBackward<bf16> p, Sorted sorted, const float* partials) {
  const int chunk = blockIdx.x;
  const int begin = chunk * kChunk, end = begin + kChunk;
  if (end >= sorted.count || sorted.tokens[end - 1] != sorted.tokens[end]) return; // no run crosses
  const int token = sorted.tokens[end];
  if (begin > 0 && sorted.tokens[begin - 1] == token && sorted.tokens[begin] == token) return; // started earlier
  for (int column = threadIdx.x; column < p.C; column += blockDim.x) {
    float sum = partials[(static_cast<int64_t>(chunk) * 2 + 1) * p.C + column];
    for (int next = chunk + 1; next * kChunk < sorted.count && sorted.tokens[next * kChunk] == token; ++next)
      sum += partials[static_cast<int64_t>(next) * 2 * p.C + column];
    p.dwte[static_cast<int64_t>(token) * p.C + column] += sum;
  }
}

// Scratch memory: sorted tokens, sorted positions, positions, then CUB's buffer; afterwards the partial sums take CUB's
// place.
Sorted sort_tokens(CudaStream& cuda, const EmbeddingBackward<bf16>& p, float** partials) {
  const int count = p.B * p.T;
  const size_t stride = ceil_div(count, 64) * 64; // int32, 256-byte aligned
  const size_t chunks = ceil_div(count, kChunk);
  int bits = 1;
  while ((1 << bits) < p.vocab) ++bits;

  size_t cub_bytes = 0;
  CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, cub_bytes, p.tokens, static_cast<int32_t*>(nullptr),
                                             static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr),
                                             count, 0, bits, cuda.stream));
  const size_t partial_values = chunks * 2 * p.C;
  auto* const base =
      cuda.scratch<int32_t>(3 * stride + std::max(ceil_div(cub_bytes, 4), static_cast<int64_t>(partial_values)));
  int32_t *const sorted_tokens = base, *const sorted_positions = base + stride, *const positions = base + 2 * stride;
  void* const rest = base + 3 * stride;

  iota_kernel<<<grid_size(count, 256), 256, 0, cuda.stream>>>(positions, count);
  CUDA_CHECK_LAUNCH("iota");
  CUDA_CHECK(cub::DeviceRadixSort::SortPairs(rest, cub_bytes, p.tokens, sorted_tokens, positions, sorted_positions,
                                             count, 0, bits, cuda.stream));
  *partials = static_cast<float*>(rest);
  return {sorted_tokens, sorted_positions, count};
}

// dwte[token] += dout
void add_by_token(CudaStream& cuda, const EmbeddingBackward<bf16>& p) {
  float* partials = nullptr;
  const Sorted sorted = sort_tokens(cuda, p, &partials);
  const unsigned chunks = grid_size(sorted.count, kChunk);
  const auto threads = static_cast<unsigned>(ceil_div(p.C / kVector, kWarp) * kWarp);
  token_gradient_kernel<<<chunks, threads, 0, cuda.stream>>>(p, sorted, partials);
  CUDA_CHECK_LAUNCH("token_gradient");
  join_runs_kernel<<<chunks, 256, 0, cuda.stream>>>(p, sorted, partials);
  CUDA_CHECK_LAUNCH("join_runs");
}

} // namespace

void embedding_forward(CudaStream& cuda, const EmbeddingForward<bf16>& p) {
  const int64_t vectors = static_cast<int64_t>(p.B) * p.T * p.C / kVector;
  const NvtxRange range(cuda, "embedding_forward", 4.0 * kVector * static_cast<double>(vectors));
  const Requirements require("embedding_forward");
  require(p.C % kVector == 0, "C is a multiple of 8");
  constexpr int kThreads = 256;
  embedding_forward_kernel<<<grid_size(vectors, kThreads), kThreads, 0, cuda.stream>>>(p, vectors);
  CUDA_CHECK_LAUNCH("embedding_forward");
}

void embedding_backward(CudaStream& cuda, const EmbeddingBackward<bf16>& p) {
  const NvtxRange range(cuda, "embedding_backward", 4.0 * p.B * static_cast<double>(p.T) * p.C);
  const Requirements require("embedding_backward");
  require(p.C % kVector == 0, "C is a multiple of 8");
  require(p.C <= kMaxChannels, "C is at most 8192: one thread per vector");
  require(int64_t{p.B} * p.T <= INT32_MAX, "B * T fits in 32 bits");
  if (p.positions) {
    EmbeddingBackward<bf16> of_positions = p;
    of_positions.dwte = p.dwpe;
    of_positions.tokens = p.positions;
    of_positions.vocab = p.T;
    add_by_token(cuda, of_positions);
  } else {
    const int64_t vectors = static_cast<int64_t>(p.T) * p.C / kVector;
    position_gradient_kernel<<<grid_size(vectors, 128), 128, 0, cuda.stream>>>(p, vectors);
    CUDA_CHECK_LAUNCH("position_gradient");
  }
  add_by_token(cuda, p);
}

} // namespace gpt2
