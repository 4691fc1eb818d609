// Token + position embedding.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

template <class A> // A: activation type
struct EmbeddingForward {
  A* out;                // (B, T, C)
  const int32_t* tokens; // (B, T)
  const A* wte;          // (Vp, C)
  const A* wpe;          // (T, C)
  int B, T, C;
  const int32_t* positions = nullptr; // (B, T); null: 0 .. T - 1 in every sequence
};
void embedding_forward(Cpu&, const EmbeddingForward<float>&);
void embedding_forward(CudaStream&, const EmbeddingForward<bf16>&);

// Adds to both gradients. Deterministic: each row is summed in token order.
template <class A>
struct EmbeddingBackward {
  float* dwte;           // (Vp, C) +=
  float* dwpe;           // (T, C) +=
  const A* dout;         // (B, T, C)
  const int32_t* tokens; // (B, T)
  int B, T, C;
  int vocab;                          // token ids are below this
  const int32_t* positions = nullptr; // as in the forward pass
};
void embedding_backward(Cpu&, const EmbeddingBackward<float>&);
void embedding_backward(CudaStream&, const EmbeddingBackward<bf16>&);

} // namespace gpt2
