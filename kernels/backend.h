// What a kernel runs on. Every operation is one struct of arguments (the contract, shapes in comments) and one
// function overloaded by backend: (Cpu&, X<float>) in name_cpu.cpp, (CudaStream&, X<bf16>) in name.cu.
#pragma once

#include <cstdint>

struct __nv_bfloat16; // cuda_bf16.h, which only .cu files include

namespace gpt2 {

using bf16 = ::__nv_bfloat16;

struct Cpu {};     // FP32 activations; threads are OpenMP's
struct CudaStream; // kernels/cuda/cuda_backend.h: a stream of a device, scratch memory; BF16 activations

} // namespace gpt2
