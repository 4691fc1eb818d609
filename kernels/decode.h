// What reading one token more does and a forward pass does not: tokens at positions of their own, and attention over
// keys and values that were cache of the tokens before.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// One block's keys and values. A head's positions stand together: attention reads them from end to end.
template <class A>
struct KvCache {
  A* keys;   // (rows, NH, positions, HS)
  A* values; // (rows, NH, positions, HS)
  int positions;
};

// Which row of the cache each of `count` tokens belongs to, and where in that row's text it stands.
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

// The keys and values in qkv go where they belong.
template <class A>
struct AppendKvCache {
  KvCache<A> cache;
  const A* qkv; // (count, 3, NH, HS)
  TokenSlots slots;
  int NH, HS;
};
void append_kv_cache(Cpu&, const AppendKvCache<float>&);
void append_kv_cache(CudaStream&, const AppendKvCache<bf16>&);

// Each token sees its row's positions up to its own, which have all been cache, its own too. Scale 1/sqrt(HS).
template <class A>
struct AttentionDecode {
  A* out;       // (count, NH, HS)
  const A* qkv; // (count, 3, NH, HS); only the queries are read
  KvCache<A> cache;
  TokenSlots slots;
  int NH, HS;
};
void attention_decode(Cpu&, const AttentionDecode<float>&);
// HS / 8 a power of two, at most 32: a key is read by so many lanes, 16 bytes each.
void attention_decode(CudaStream&, const AttentionDecode<bf16>&);
constexpr bool gpu_decode_supports_head_size(int HS) {
  return HS % 8 == 0 && HS / 8 <= 32 && (HS / 8 & (HS / 8 - 1)) == 0;
}

// A linear layer for so few rows that reading its weights is all that it costs, with what stands before and after it:
// out = residual + gelu(LayerNorm(in) weight^T + bias), each part where it is asked for. GPU only.
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
