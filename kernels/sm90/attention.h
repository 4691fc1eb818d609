// Causal attention for Hopper: heads of 64 channels, sequences of whole tiles of 64.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/cuda_backend.h"

namespace gpt2::sm90 {

// Is a batch of B sequences computed by these kernels? Not where the user has named cuDNN.
bool can_implement_attention(int compute_capability, AttentionKind kind, int B, int T, int HS);

void attention_forward(CudaStream& cuda, const AttentionForward<bf16>& args);

// Is there scratch memory for the column sums of every tile, from which a bias gradient is made?
bool can_fuse_bias_gradient(const CudaStream& cuda, const AttentionBackward<bf16>& args);

// The same bits every time. dbias (3C) += column sums of dqkv before it is rounded, or null.
void attention_backward(CudaStream& cuda, const AttentionBackward<bf16>& args, float* dbias = nullptr);

} // namespace gpt2::sm90
