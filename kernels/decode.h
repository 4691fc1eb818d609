// Operations of incremental decoding: tokens at positions of their own, and attention over a KV cache.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// KV cache of one transformer block. The positions of a head are contiguous: attention streams them.
template <class A>
struct KvCache {
  A* keys;   // (rows, NH, positions, HS)
  A* values; // (rows, NH, positions, HS)
  int positions;
};

// The cache row and the position of each of `count` tokens.
struct TokenSlots {
  const int32_t* rows;      // (count)
  const int32_t* positions; // (count)
  int64_t count;
};

template <class A>
struct EmbeddingDecode {
  A* out;                // (count, C)
  const int32_t* tokens; // (count)
  TokenSlots slots;
  const A* wte; // (Vp, C)
  const A* wpe; // (T, C)
  int C;
};
void embedding_decode(Cpu&, const EmbeddingDecode<float>&);
void embedding_decode(CudaStream&, const EmbeddingDecode<bf16>&);

// Writes the keys and values of qkv into the cache.
template <class A>
struct AppendKvCache {
  KvCache<A> cache;
  const A* qkv; // (count, 3, NH, HS)
  TokenSlots slots;
  int NH, HS;
};
void append_kv_cache(Cpu&, const AppendKvCache<float>&);
void append_kv_cache(CudaStream&, const AppendKvCache<bf16>&);

// Each token attends to the cached positions of its row up to its own, which must be in the cache. Scale 1/sqrt(HS).
template <class A>
struct AttentionDecode {
  A* out;       // (count, NH, HS)
  const A* qkv; // (count, 3, NH, HS); only the queries are read
  KvCache<A> cache;
  TokenSlots slots;
  int NH, HS;
};
void attention_decode(Cpu&, const AttentionDecode<float>&);
// HS / 8 is a power of two, at most 32: HS / 8 lanes read a key, 16 bytes each.
void attention_decode(CudaStream&, const AttentionDecode<bf16>&);
constexpr bool gpu_decode_supports_head_size(int HS) {
  return HS % 8 == 0 && HS / 8 <= 32 && (HS / 8 & (HS / 8 - 1)) == 0;
}

// A linear layer for up to 8 rows, bound by reading its weights, fused with its neighbors: out = residual +
// gelu(LayerNorm(in) weight^T + bias); LayerNorm, GELU, bias and residual are optional. GPU only.
struct LinearDecode {
  bf16* out;              // (rows, OC); may be residual
  const bf16* in;         // (rows, C)
  const bf16* weight;     // (OC, C)
  const bf16* bias;       // (OC), or null
  const float* ln_weight; // (C), or null: no LayerNorm
  const float* ln_bias;   // (C), with ln_weight
  const bf16* residual;   // (rows, OC), or null
  bool gelu;
  int rows, C, OC; // rows: at most kMaxDecodeRows; C a multiple of 8
};
void linear_decode(CudaStream&, const LinearDecode&);
constexpr int kMaxDecodeRows = 8;

} // namespace gpt2
