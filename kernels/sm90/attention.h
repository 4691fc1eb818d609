// Causal attention for Hopper: head dimension 64, sequence length a multiple of 64.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/cuda_backend.h"

namespace gpt2::sm90 {

// False if the user chose cuDNN.
bool can_implement_attention(bool sm90_kernels, AttentionKind kind, int B, int T, int HS);

void attention_forward(CudaStream& cuda, const AttentionForward<bf16>& args);

// True if the scratch memory holds the column sums of every tile of dqkv.
bool can_fuse_bias_gradient(const CudaStream& cuda, const AttentionBackward<bf16>& args);

// Deterministic. dbias (3C) += column sums of dqkv before rounding; may be null.
void attention_backward(CudaStream& cuda, const AttentionBackward<bf16>& args, float* dbias = nullptr);

} // namespace gpt2::sm90
