// Opens a GPU and its streams, and turns CUDA error codes into messages with a hint.
#include "kernels/cuda/cuda_backend.h"

#include <utility>

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
  const char* name = file;
  for (const char* c = file; *c; ++c) {
    if (*c == '/') name = c + 1;
  }
  throw Error(ExitCode::device,
              std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ", " + name +
                  ":" + std::to_string(line) + ")",
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
  shared_memory_per_block = static_cast<int>(properties.sharedMemPerBlockOptin);
  shared_memory_per_multiprocessor = static_cast<int>(properties.sharedMemPerMultiprocessor);
  compute_capability = 10 * properties.major + properties.minor;
  if (compute_capability < 80) {
    refuse_device("this GPU has compute capability " + std::to_string(properties.major) + "." +
                      std::to_string(properties.minor) + "; BF16 needs 8.0",
                  "train on the CPU engine, or use an A100, H100 or newer");
  }
  require_device_code(options.device);
}

CudaStream::CudaStream(std::shared_ptr<CudaDevice> on, Priority priority) : device(std::move(on)) {
  try {
    CUDA_CHECK(cudaSetDevice(device->options.device));
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == Priority::high ? greatest : least));
    CUDA_CHECK(cudaMalloc(&scratch_base, device->options.scratch_bytes));
    scratch_bytes = device->options.scratch_bytes;
    CUDA_CHECK(cudaMalloc(&gemm_workspace, kGemmWorkspaceBytes));
  } catch (...) {
    release();
    throw;
  }
}

CudaStream::~CudaStream() { release(); }

// Ignores errors: after a lost device every call fails, and the first failure was reported.
void CudaStream::release() noexcept {
  if (stream) cudaStreamSynchronize(stream);
  for (void* workspace : attention_workspaces_) cudaFree(workspace);
  cudaFree(gemm_workspace);
  cudaFree(scratch_base);
  if (stream) cudaStreamDestroy(stream);
}

void* CudaStream::attention_workspace(size_t bytes) {
  if (bytes > attention_workspace_largest_) {
    void* workspace = nullptr;
    CUDA_CHECK(cudaMalloc(&workspace, bytes));
    attention_workspaces_.push_back(workspace);
    attention_workspace_largest_ = bytes;
    attention_workspace_held_ += bytes;
  }
  return attention_workspaces_.empty() ? nullptr : attention_workspaces_.back();
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
