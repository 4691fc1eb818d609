// Causal multi-head attention on packed QKV, scale 1/sqrt(HS), no dropout, over the whole sequence or within documents.
// On the GPU the scores never reach device memory.
#pragma once

#include "kernels/documents.h"

namespace gpt2 {

template <class A>
struct AttentionForward {
  A* out;       // (B, T, NH, HS) = (B, T, C)
  float* stats; // (B, NH, T): logsumexp of each row's scaled scores, for the backward pass
  const A* qkv; // (B, T, 3, NH, HS)
  int B, T, NH, HS;
  DocumentBounds documents = {}; // a mask if given
};
void attention_forward(Cpu&, const AttentionForward<float>&);
void attention_forward(CudaStream&, const AttentionForward<bf16>&);

template <class A>
struct AttentionBackward {
  A* dqkv;            // (B, T, 3, NH, HS)
  const A* dout;      // (B, T, NH, HS)
  const A* out;       // (B, T, NH, HS)
  const A* qkv;       // (B, T, 3, NH, HS)
  const float* stats; // (B, NH, T)
  int B, T, NH, HS;
  DocumentBounds documents = {}; // as in the forward pass
};
void attention_backward(Cpu&, const AttentionBackward<float>&);
void attention_backward(CudaStream&, const AttentionBackward<bf16>&);

} // namespace gpt2
