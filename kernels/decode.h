// What reading one token more does and a forward pass does not: tokens at positions of their own, and attention over
// keys and values that were kept of the tokens before.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// One block's keys and values. A head's positions stand together: attention reads them from end to end.
template <class A>
struct KeptKeysValues {
  A* keys;   // (rows, NH, positions, HS)
  A* values; // (rows, NH, positions, HS)
  int positions;
};

// Which row of the cache each of `count` tokens belongs to, and where in that row's text it stands.
struct TokenPlaces {
  const int32_t* rows;      // (count)
  const int32_t* positions; // (count)
  int64_t count;
};

template <class A>
struct EmbeddingDecode {
  A* out;                // (count, C)
  const int32_t* tokens; // (count)
  TokenPlaces places;
  const A* wte; // (Vp, C)
  const A* wpe; // (T, C)
  int C;
};
void embedding_decode(Cpu&, const EmbeddingDecode<float>&);

// The keys and values in qkv go where they belong.
template <class A>
struct KeepKeysValues {
  KeptKeysValues<A> kept;
  const A* qkv; // (count, 3, NH, HS)
  TokenPlaces places;
  int NH, HS;
};
void keep_keys_values(Cpu&, const KeepKeysValues<float>&);

// Each token sees its row's positions up to its own, which have all been kept, its own too. Scale 1/sqrt(HS).
template <class A>
struct AttentionDecode {
  A* out;       // (count, NH, HS)
  const A* qkv; // (count, 3, NH, HS); only the queries are read
  KeptKeysValues<A> kept;
  TokenPlaces places;
  int NH, HS;
};
void attention_decode(Cpu&, const AttentionDecode<float>&);

} // namespace gpt2
