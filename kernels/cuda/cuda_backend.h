// What a CUDA kernel launch needs: a stream, scratch memory, and the tuned plans of the libraries.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "kernels/attention.h"
#include "kernels/backend.h"

namespace gpt2 {

// Throws Error(device) naming the call; out-of-memory and a lost device get their own hints.
void cuda_check(cudaError_t status, const char* what, const char* file, int line);
#define CUDA_CHECK(call) ::gpt2::cuda_check((call), #call, __FILE__, __LINE__)

// Throws Error(device) if this program was compiled for other GPUs than `device`, and says how to compile for it.
void require_device_code(int device);
std::string rebuild_hint(int compute_capability); // 90 for Hopper

class MatmulPlans;    // kernels/cuda/matmul_plans.h: cuBLASLt handle, tuned algorithms by shape
class Profile;        // kernels/cuda/profile.h: times operations while a benchmark asks for it
class AttentionPlans; // kernels/cuda/attention_cudnn.cpp: cuDNN SDPA graphs by shape

struct CudaOptions {
  int device = 0;
  bool deterministic = false; // never choose by timing; deterministic attention backward
  std::string plan_cache;     // file of tuned plans, read at start and rewritten when plans are added; empty: none
  AttentionKind attention = AttentionKind::automatic;
  size_t scratch_bytes = 96u << 20; // partial sums, sort buffers, cuBLASLt's 32 MiB
};

// One per model. Kernels of a step are ordered by the stream, so an operation may use all of the scratch memory and
// leave nothing in it for the next.
struct Cuda {
  explicit Cuda(const CudaOptions& options);
  ~Cuda();
  Cuda(const Cuda&) = delete;

  // The scratch memory as `count` elements of T, 256-byte aligned. Throws if it is too small.
  template <class T>
  T* scratch(size_t count) {
    if (count * sizeof(T) > scratch_bytes) throw_scratch_too_small(count * sizeof(T));
    return reinterpret_cast<T*>(scratch_base);
  }
  [[noreturn]] void throw_scratch_too_small(size_t bytes) const;

  CudaOptions options;
  cudaStream_t stream = nullptr;
  int multiprocessors = 0;
  int compute_capability = 0;               // 90 for Hopper
  int shared_memory_per_block = 0;          // bytes, with the opt-in: 227 KiB on Hopper
  int shared_memory_per_multiprocessor = 0; // 228 KiB
  std::byte* scratch_base = nullptr;
  size_t scratch_bytes = 0;
  std::unique_ptr<MatmulPlans> matmuls;
  std::unique_ptr<AttentionPlans> attentions;
  Profile* profile = nullptr; // not owned; null: no timing

 private:
  void release() noexcept;
};

// Launch errors surface here, with the kernel's name.
#define CUDA_CHECK_LAUNCH(name) ::gpt2::cuda_check(cudaGetLastError(), name, __FILE__, __LINE__)

} // namespace gpt2
