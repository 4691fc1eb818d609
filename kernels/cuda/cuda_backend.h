// Execution context of the CUDA kernels: a device with its GEMM and attention plans, a stream on it, scratch memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "kernels/backend.h"

namespace gpt2 {

// Throws Error(device) with the failing call; out-of-memory and a lost device have hints of their own.
void cuda_check(cudaError_t status, const char* what, const char* file, int line);
#define CUDA_CHECK(call) ::gpt2::cuda_check((call), #call, __FILE__, __LINE__)

// Throws Error(device) if this program has no code for `device`; the hint says how to rebuild.
void require_device_code(int device);
std::string rebuild_hint(int compute_capability); // 90 for Hopper
int compute_capability_of(int device);            // 0 if unknown

// True if this GPU runs kernels/sm90. GPT2_KERNELS=general in the environment means KernelChoice::general: for tests.
bool uses_sm90_kernels(int compute_capability, KernelChoice kernels);

// Device memory of this process, within --memory_limit. CUDA's context and what libraries allocate are not counted.
void limit_device_memory(size_t bytes);                      // 0: no limit
cudaError_t device_memory_info(size_t* free, size_t* total); // cudaMemGetInfo, at most what the limit leaves
void* allocate_device(size_t bytes);                         // throws Error(device)
void free_device(void* data, size_t bytes) noexcept;

bool is_capturing(cudaStream_t stream); // under stream capture

class AttentionPlans; // kernels/cuda/attention_cudnn.h: cuDNN SDPA graphs by shape
class GemmPlans;      // kernels/cuda/gemm_plans.h: the method of each GEMM
class Profile;        // kernels/cuda/profile.h: timing for benchmarks

constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20; // cuBLAS's recommendation for Hopper

struct CudaOptions {
  int device = 0;
  bool deterministic = false; // no autotuning; cuDNN's deterministic backward
  std::string plan_cache;     // file of autotuned plans (engine/system/tuning_store.h); empty: none
  AttentionKind attention = AttentionKind::automatic;
  KernelChoice kernels = KernelChoice::automatic;
  size_t scratch_bytes = size_t{64} << 20; // per stream: partial sums, sort buffers

  size_t bytes_per_stream() const { return scratch_bytes + kGemmWorkspaceBytes; }
};

// One GPU: its properties, and its GEMM and attention plans. One host thread launches on it, on any number of streams.
// Create it with open_device() (kernels/cuda/open_device.h), which adds the plans.
struct CudaDevice {
  explicit CudaDevice(const CudaOptions& options);
  CudaDevice(const CudaDevice&) = delete;

  CudaOptions options;
  std::string name; // "NVIDIA H200"
  int multiprocessors = 0;
  int compute_capability = 0;               // 90 for Hopper
  bool sm90_kernels = false;                // uses_sm90_kernels()
  int shared_memory_per_block = 0;          // bytes, with the opt-in: 227 KiB on Hopper, 99 KiB on Ada
  int shared_memory_per_multiprocessor = 0; // 1 KiB more
  std::shared_ptr<GemmPlans> gemms;
  std::shared_ptr<AttentionPlans> attentions;
};

// A CUDA stream with its own scratch memory and workspaces. Operations of a stream run in order, so each may use all of
// the scratch memory and none may leave data there. Streams share only the device's plans.
struct CudaStream {
  enum class Priority { normal, high }; // high: scheduled first
  explicit CudaStream(std::shared_ptr<CudaDevice> device, Priority priority = Priority::normal);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;

  // The scratch memory as `count` elements of T, 256-byte aligned. Throws if too small.
  template <class T>
  T* scratch(size_t count) {
    if (count * sizeof(T) > scratch_bytes) throw_scratch_too_small(count * sizeof(T));
    return reinterpret_cast<T*>(scratch_base);
  }
  [[noreturn]] void throw_scratch_too_small(size_t bytes) const;

  // cuDNN's workspace of this stream, at least `bytes`. It grows at the first operation of a shape.
  void* attention_workspace(size_t bytes);
  size_t attention_workspace_bytes() const { return attention_workspace_held_; }

  bool capturing() const { return is_capturing(stream); }

  std::shared_ptr<CudaDevice> device;
  cudaStream_t stream = nullptr;
  std::byte* scratch_base = nullptr;
  size_t scratch_bytes = 0;
  std::byte* gemm_workspace = nullptr; // kGemmWorkspaceBytes, for cuBLASLt
  Profile* profile = nullptr;          // not owned; null: no timing

 private:
  void release() noexcept;

  // {address, bytes}. Captured graphs hold the addresses of smaller workspaces, so those stay; the last is the largest.
  std::vector<std::pair<void*, size_t>> attention_workspaces_;
  size_t attention_workspace_held_ = 0; // bytes
};

// Opts a kernel in to `bytes` of dynamic shared memory. Throws Error(device) beyond shared_memory_per_block, as the
// launch would on a GPU that has no more: GPT2_SHARED_MEMORY_LIMIT=99 (KiB) in the environment makes any GPU one.
void allow_shared_memory(const CudaDevice& device, const void* kernel, size_t bytes);
template <class... Arguments>
void allow_shared_memory(const CudaDevice& device, void (*kernel)(Arguments...), size_t bytes) {
  allow_shared_memory(device, reinterpret_cast<const void*>(kernel), bytes);
}

// Checks a kernel launch.
#define CUDA_CHECK_LAUNCH(name) ::gpt2::cuda_check(cudaGetLastError(), name, __FILE__, __LINE__)

} // namespace gpt2
