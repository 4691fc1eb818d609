// What a CUDA kernel launch needs: a device with the tuned plans of the libraries, a stream on it, and scratch memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

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
int compute_capability_of(int device);            // 0 if it cannot be asked

bool is_capturing(cudaStream_t stream); // under stream capture

class AttentionPlans; // kernels/cuda/attention_cudnn.h: cuDNN SDPA graphs by shape
class GemmPlans;      // kernels/cuda/gemm_plans.h: how each matrix product is computed
class Profile;        // kernels/cuda/profile.h: times operations while a benchmark asks for it

constexpr size_t kGemmWorkspaceBytes = size_t{32} << 20; // what cuBLAS recommends for Hopper

struct CudaOptions {
  int device = 0;
  bool deterministic = false; // never choose by timing; cuDNN's backward in its deterministic way
  std::string plan_cache;     // file of remembered tuning (engine/base/tuning_store.h); empty: none
  AttentionKind attention = AttentionKind::automatic;
  size_t scratch_bytes = size_t{64} << 20; // of each stream: partial sums, sort buffers

  size_t bytes_per_stream() const { return scratch_bytes + kGemmWorkspaceBytes; }
};

// One GPU as a model uses it: what it can do, and how products and attention are computed on it. One host thread
// launches for it, on as many streams as it likes.
struct CudaDevice {
  explicit CudaDevice(const CudaOptions& options);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;

  CudaOptions options;
  std::string name; // "NVIDIA H200"
  int multiprocessors = 0;
  int compute_capability = 0;               // 90 for Hopper
  int shared_memory_per_block = 0;          // bytes, with the opt-in: 227 KiB on Hopper
  int shared_memory_per_multiprocessor = 0; // 228 KiB
  std::unique_ptr<GemmPlans> gemms;
  std::unique_ptr<AttentionPlans> attentions;
};

// What an operation runs on: a stream with its own scratch memory and workspaces. Operations of one stream follow one
// another, so each may use all of the scratch memory and leave nothing in it for the next; operations of two streams
// run side by side and share nothing but the device's plans.
struct CudaStream {
  explicit CudaStream(const CudaOptions& options); // opens the device, and its first stream
  enum class Priority { normal, high };            // whose blocks are taken first when a multiprocessor has room
  explicit CudaStream(std::shared_ptr<CudaDevice> device, Priority priority = Priority::normal);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;

  // The scratch memory as `count` elements of T, 256-byte aligned. Throws if it is too small.
  template <class T>
  T* scratch(size_t count) {
    if (count * sizeof(T) > scratch_bytes) throw_scratch_too_small(count * sizeof(T));
    return reinterpret_cast<T*>(scratch_base);
  }
  [[noreturn]] void throw_scratch_too_small(size_t bytes) const;

  // cuDNN's workspace of this stream, at least so many bytes. It grows at the first operation of a shape.
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

  // Graphs captured earlier hold the addresses of the smaller ones, so those stay; the last is the largest.
  std::vector<void*> attention_workspaces_;
  size_t attention_workspace_largest_ = 0, attention_workspace_held_ = 0; // bytes
};

// Launch errors surface here, with the kernel's name.
#define CUDA_CHECK_LAUNCH(name) ::gpt2::cuda_check(cudaGetLastError(), name, __FILE__, __LINE__)

} // namespace gpt2
