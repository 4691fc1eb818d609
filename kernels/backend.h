// Backends. Every operation is one struct of arguments (the contract, shapes in comments) and one function overloaded
// by backend: (Cpu&, X<float>) in name_cpu.cpp, (CudaStream&, X<bf16>) in name.cu.
#pragma once

#include <cstdint>

struct __nv_bfloat16; // cuda_bf16.h, which only .cu files include

namespace gpt2 {

using bf16 = ::__nv_bfloat16;

struct Cpu {};     // FP32 activations, OpenMP threads
struct CudaStream; // kernels/cuda/cuda_backend.h; BF16 activations

// Attention on a GPU. automatic: the Hopper kernels (kernels/sm90/attention.h), else cuDNN if installed, else
// attention.cu.
enum class AttentionKind { automatic, cudnn, handwritten };

// Kernels of a GPU. automatic: on Hopper those of kernels/sm90 where one fits. general: those of every GPU.
enum class KernelChoice { automatic, general };

} // namespace gpt2
