// One CTA per row. It holds all logits in registers as order-preserving 16-bit keys and finds the smallest selected key
// by 16 bisections; ties are broken by 16 more on the token id. Each row is read once, 100 KB from L2; a bisection is
// about 60 instructions and a barrier: 10 us for up to one row per SM.
#include "kernels/top_k.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {
namespace {

constexpr int kThreads = 1024;
constexpr int kVectors = 7; // per thread: 57,344 logits per row
constexpr int kBits = 16;   // of a key, and of a token id
constexpr int kPairs = kVector / 2;

// Order-preserving: negative numbers inverted, both zeros equal, NaN highest.
__device__ inline uint32_t key_of(uint32_t bits) {
  if ((bits & 0x7FFF) > 0x7F80) return 0xFFFF;
  if (bits == 0x8000) bits = 0;
  return bits & 0x8000 ? ~bits & 0xFFFF : bits | 0x8000;
}

__device__ inline uint32_t keys_of(uint32_t pair) { return key_of(pair & 0xFFFF) | key_of(pair >> 16) << 16; }

__device__ inline float value_of(uint32_t key) {
  const uint32_t bits = key & 0x8000 ? key & 0x7FFF : ~key & 0xFFFF;
  return __uint_as_float(bits << 16); // key 0xFFFF: bits 0x7FFF, a NaN
}

// The thread's keys: keys[round][pair] holds tokens (round * kThreads + thread) * 8 + 2 * pair and + 1. Key 0, below
// -infinity's, marks padding.
struct RowKeys {
  uint32_t keys[kVectors][kPairs];

  __device__ RowKeys(const bf16* logits, int vocab) {
#pragma unroll
    for (int round = 0; round < kVectors; ++round) {
      const int first = first_token(round);
      const uint4 packed = first < vocab ? load_raw(logits, first / kVector) : uint4{};
      const uint32_t pairs[kPairs] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int token = first + 2 * pair;
        const uint32_t real = (token < vocab ? 0xFFFFu : 0) | (token + 1 < vocab ? 0xFFFF0000u : 0);
        keys[round][pair] = keys_of(pairs[pair]) & real;
      }
    }
  }

  __device__ static int first_token(int round) { return (round * kThreads + static_cast<int>(threadIdx.x)) * kVector; }

  template <class Visitor>
  __device__ void each(const Visitor& visit) const {
#pragma unroll
    for (int round = 0; round < kVectors; ++round) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        visit(keys[round][pair] & 0xFFFF, first_token(round) + 2 * pair);
        visit(keys[round][pair] >> 16, first_token(round) + 2 * pair + 1);
      }
    }
  }

  __device__ int at_least(uint32_t key) const {
    const uint32_t both = key | key << 16;
    uint32_t counts = 0; // counts of low and high halves
#pragma unroll
    for (int round = 0; round < kVectors; ++round) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) counts += __vsetgeu2(keys[round][pair], both);
    }
    return static_cast<int>((counts & 0xFFFF) + (counts >> 16));
  }

  __device__ int equal_before(uint32_t key, int end) const {
    int count = 0;
    each([&](uint32_t other, int token) { count += other == key && token < end; });
    return count;
  }
};

__global__ void __launch_bounds__(kThreads) top_k_kernel(TopKTokens p) {
  __shared__ int counts[2 * kBits + 1]; // one per bisection: one barrier each
  __shared__ int written;
  const RowKeys row(p.logits + static_cast<int64_t>(blockIdx.x) * p.padded_vocab, p.vocab);
  TokenLogit* const out = p.out + static_cast<int64_t>(blockIdx.x) * p.count;
  if (threadIdx.x <= 2 * kBits) counts[threadIdx.x] = 0;
  if (threadIdx.x == 0) written = 0;
  __syncthreads();
  const auto total = [&](int own, int slot) {
    own = warp_sum(own);
    if (threadIdx.x % kWarp == 0) atomicAdd(&counts[slot], own);
    __syncthreads();
    return counts[slot];
  };

  uint32_t least = 0; // highest key with at least `count` tokens at or above
#pragma unroll 1
  for (int bit = kBits - 1; bit >= 0; --bit) {
    const uint32_t higher = least | 1u << bit;
    if (total(row.at_least(higher), bit) >= p.count) least = higher;
  }
  const int above = total(least < 0xFFFF ? row.at_least(least + 1) : 0, 2 * kBits);
  int end = 0; // ids below this fill the remaining places among ties
#pragma unroll 1
  for (int bit = kBits - 1; bit >= 0; --bit) {
    const int further = end + (1 << bit);
    if (above + total(row.equal_before(least, further), kBits + bit) <= p.count) end = further;
  }
  row.each([&](uint32_t key, int token) {
    if (key > least || (key == least && token < end)) out[atomicAdd(&written, 1)] = {value_of(key), token};
  });
}

} // namespace

void top_k_tokens(CudaStream& cuda, const TopKTokens& p) {
  const NvtxRange range(cuda, "top_k_tokens", 2.0 * p.rows * p.padded_vocab);
  const Requirements require("top_k_tokens");
  require(p.count >= 1 && p.count <= std::min(p.vocab, kMaxTopK), "count is 1 to 1024, and not above vocab");
  require(p.padded_vocab % kVector == 0, "padded_vocab is a multiple of 8");
  require(p.padded_vocab <= kThreads * kVectors * kVector, "a row has at most 57,344 logits");
  top_k_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("top_k_tokens");
}

} // namespace gpt2
