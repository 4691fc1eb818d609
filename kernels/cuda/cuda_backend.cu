// Opens a GPU and its streams, and turns CUDA error codes into messages with a hint.
#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/base/log.h"

namespace gpt2 {
namespace {

__global__ void empty_kernel() {}

int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

bool means_no_code(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion ||
         status == cudaErrorInvalidPtx;
}

// One hint per kind of failure.
std::string hint_for(cudaError_t status) {
  if (means_no_code(status)) return rebuild_hint(compute_capability_of(current_device()));
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "lower --batch_size, turn on --recompute, or free the GPU of other programs (nvidia-smi lists them)";
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "install an NVIDIA driver for CUDA 13 (580 or newer)";
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return "check nvidia-smi and CUDA_VISIBLE_DEVICES";
    case cudaErrorDevicesUnavailable:
      return "free the GPU of other programs, or take it out of exclusive mode";
    case cudaErrorECCUncorrectable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorHardwareStackError:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorUnknown:
    case cudaErrorExternalDevice:
      return "the GPU failed: read dmesg for its Xid, reset it, and continue with --resume latest";
    default:
      return "continue with --resume latest; if it happens again, run under compute-sanitizer and report it";
  }
}

[[noreturn]] void refuse_device(const std::string& what, const std::string& hint) {
  throw Error(ExitCode::device, what, hint);
}

} // namespace

int compute_capability_of(int device) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return 10 * major + minor;
}

void cuda_check(cudaError_t status, const char* what, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError(); // clears the error unless it is sticky: it is reported once
  const char* const slash = std::strrchr(file, '/');
  throw Error(ExitCode::device,
              std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ", " +
                  (slash ? slash + 1 : file) + ":" + std::to_string(line) + ")",
              hint_for(status));
}

std::string rebuild_hint(int compute_capability) {
  const std::string letter = compute_capability == 90 ? "a" : ""; // sm_90a
  return "run: make ARCHS=" + std::to_string(compute_capability) + letter + "-real";
}

void require_device_code(int device) {
  CUDA_CHECK(cudaSetDevice(device));
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, empty_kernel);
  if (!means_no_code(status)) return CUDA_CHECK(status);
  cudaGetLastError(); // clears the error: it is reported below
  const int compute_capability = compute_capability_of(device);
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  refuse_device("this program has no code for " + std::string(properties.name) + ", compute capability " +
                    std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10),
                rebuild_hint(compute_capability));
}

bool uses_sm90_kernels(int compute_capability, KernelChoice kernels) {
  const char* const asked = std::getenv("GPT2_KERNELS");
  return compute_capability == 90 && kernels != KernelChoice::general && !(asked && std::string(asked) == "general");
}

// ---- memory ----

namespace {

// Of the process, as the GPU's memory is: models, streams and caches all draw on them.
std::atomic<size_t> memory_limit{0}, memory_held{0}; // bytes

} // namespace

void limit_device_memory(size_t bytes) { memory_limit = bytes; }

cudaError_t device_memory_info(size_t* free, size_t* total) {
  const cudaError_t status = cudaMemGetInfo(free, total);
  if (const size_t limit = memory_limit; status == cudaSuccess && limit > 0) {
    *total = std::min(*total, limit);
    *free = std::min(*free, limit - std::min(limit, memory_held.load()));
  }
  return status;
}

void* allocate_device(size_t bytes) {
  if (const size_t limit = memory_limit, held = memory_held; limit > 0 && held + bytes > limit) {
    const auto text = [](size_t count) { return format_bytes(static_cast<double>(count)); };
    refuse_device(
        "GPU memory: " + text(held) + " in use and " + text(bytes) + " more exceed --memory_limit, " + text(limit),
        "raise --memory_limit, lower --batch_size, or use --recompute block");
  }
  void* data = nullptr;
  CUDA_CHECK(cudaMalloc(&data, bytes));
  memory_held += bytes;
  return data;
}

void free_device(void* data, size_t bytes) noexcept {
  if (!data) return;
  cudaFree(data);
  memory_held -= bytes;
}

// ---- device ----

namespace {

// GPT2_SHARED_MEMORY_LIMIT, in KiB: shared memory of a smaller GPU, for tests.
int limited_shared_memory(size_t bytes) {
  const char* const limit = std::getenv("GPT2_SHARED_MEMORY_LIMIT");
  const int available = static_cast<int>(bytes);
  return limit ? std::min(available, std::atoi(limit) * 1024) : available;
}

} // namespace

CudaDevice::CudaDevice(const CudaOptions& options) : options(options) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  if (options.device < 0 || options.device >= devices) {
    refuse_device(
        "there is no GPU " + std::to_string(options.device) + ": this process sees " + std::to_string(devices),
        "check nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  CUDA_CHECK(cudaSetDevice(options.device));
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, options.device));
  name = properties.name;
  multiprocessors = properties.multiProcessorCount;
  shared_memory_per_block = limited_shared_memory(properties.sharedMemPerBlockOptin);
  const auto reserved = static_cast<int>(properties.reservedSharedMemPerBlock);
  shared_memory_per_multiprocessor =
      std::min(static_cast<int>(properties.sharedMemPerMultiprocessor), shared_memory_per_block + reserved);
  compute_capability = 10 * properties.major + properties.minor;
  sm90_kernels = uses_sm90_kernels(compute_capability, options.kernels);
  if (compute_capability < 80) {
    refuse_device("this GPU has compute capability " + std::to_string(properties.major) + "." +
                      std::to_string(properties.minor) + "; BF16 needs 8.0",
                  "train on the CPU engine, or use an A100, H100 or newer");
  }
  require_device_code(options.device);
}

void allow_shared_memory(const CudaDevice& device, const void* kernel, size_t bytes) {
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  const size_t needed = bytes + attributes.sharedSizeBytes;
  if (needed > static_cast<size_t>(device.shared_memory_per_block)) {
    refuse_device("a kernel needs " + std::to_string(needed >> 10) + " KiB of shared memory, and this GPU has " +
                      std::to_string(device.shared_memory_per_block >> 10),
                  "report it with the output of bin/doctor --json");
  }
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// ---- streams ----

CudaStream::CudaStream(std::shared_ptr<CudaDevice> on, Priority priority) : device(std::move(on)) {
  try {
    CUDA_CHECK(cudaSetDevice(device->options.device));
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == Priority::high ? greatest : least));
    scratch_bytes = device->options.scratch_bytes;
    scratch_base = static_cast<std::byte*>(allocate_device(scratch_bytes));
    gemm_workspace = static_cast<std::byte*>(allocate_device(kGemmWorkspaceBytes));
  } catch (...) {
    release();
    throw;
  }
}

CudaStream::~CudaStream() { release(); }

// Ignores errors: after a lost device every call fails, and the first failure was reported.
void CudaStream::release() noexcept {
  if (stream) cudaStreamSynchronize(stream);
  for (const auto& [workspace, bytes] : attention_workspaces_) free_device(workspace, bytes);
  free_device(gemm_workspace, kGemmWorkspaceBytes);
  free_device(scratch_base, scratch_bytes);
  if (stream) cudaStreamDestroy(stream);
}

void* CudaStream::attention_workspace(size_t bytes) {
  if (attention_workspaces_.empty() ? bytes > 0 : bytes > attention_workspaces_.back().second) {
    attention_workspaces_.emplace_back(allocate_device(bytes), bytes);
    attention_workspace_held_ += bytes;
  }
  return attention_workspaces_.empty() ? nullptr : attention_workspaces_.back().first;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void CudaStream::throw_scratch_too_small(size_t bytes) const {
  throw Error(ExitCode::device,
              "an operation needs " + std::to_string(bytes >> 20) + " MiB of scratch memory and has " +
                  std::to_string(scratch_bytes >> 20),
              "lower --batch_size");
}

} // namespace gpt2
