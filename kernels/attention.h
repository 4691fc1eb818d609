// Causal multi-head attention on packed QKV, scale 1/sqrt(HS), no dropout. Scores never reach memory on the GPU.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// On a GPU. automatic: the kernels for Hopper (kernels/sm90/attention.h) where there are some, else cuDNN where it is
// installed, else the ones for all GPUs.
enum class AttentionKind { automatic, cudnn, handwritten };

template <class A>
struct AttentionForward {
  A* out;       // (B, T, NH, HS) = (B, T, C)
  float* stats; // (B, NH, T): logsumexp of each row's scaled scores, for backward
  const A* qkv; // (B, T, 3, NH, HS)
  int B, T, NH, HS;
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
};
void attention_backward(Cpu&, const AttentionBackward<float>&);
void attention_backward(CudaStream&, const AttentionBackward<bf16>&);

} // namespace gpt2
