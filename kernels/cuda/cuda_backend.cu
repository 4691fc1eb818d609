// Opening a GPU, and turning CUDA's error codes into a line that says what to do.
#include "kernels/cuda/cuda_backend.h"

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/matmul_plans.h"

namespace gpt2 {
namespace {

// One imperative sentence per kind of failure.
const char* hint_for(cudaError_t status) {
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
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidPtx:
      return "rebuild with your GPU's architecture in ARCHS";
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

[[noreturn]] void refuse_device(const std::string& what, const char* hint) {
  throw Error(ExitCode::device, what, hint);
}

} // namespace

void cuda_check(cudaError_t status, const char* what, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError(); // a sticky error stays, any other is now reported and must not be reported again
  const char* name = file;
  for (const char* c = file; *c; ++c) {
    if (*c == '/') name = c + 1;
  }
  throw Error(ExitCode::device,
              std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ", " + name +
                  ":" + std::to_string(line) + ")",
              hint_for(status));
}

Cuda::Cuda(const CudaOptions& options) : options(options) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  if (options.device < 0 || options.device >= devices) {
    refuse_device(
        "there is no GPU " + std::to_string(options.device) + ": this process sees " + std::to_string(devices),
        "check nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  CUDA_CHECK(cudaSetDevice(options.device));
  int major = 0, minor = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.device));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, options.device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, options.device));
  CUDA_CHECK(cudaDeviceGetAttribute(&shared_memory_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, options.device));
  CUDA_CHECK(cudaDeviceGetAttribute(&shared_memory_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                    options.device));
  compute_capability = 10 * major + minor;
  if (compute_capability < 80) {
    refuse_device(
        "this GPU has compute capability " + std::to_string(major) + "." + std::to_string(minor) + "; BF16 needs 8.0",
        "train on the CPU engine, or use an A100, H100 or newer");
  }
  try {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMalloc(&scratch_base, options.scratch_bytes));
    scratch_bytes = options.scratch_bytes;
    matmuls = std::make_unique<MatmulPlans>(*this);
    attentions = std::make_unique<AttentionPlans>(*this);
  } catch (...) {
    release();
    throw;
  }
}

Cuda::~Cuda() { release(); }

// Errors are ignored: after a lost device every call fails, and the first failure has been reported.
void Cuda::release() noexcept {
  if (stream) cudaStreamSynchronize(stream);
  attentions.reset();
  matmuls.reset();
  cudaFree(scratch_base);
  if (stream) cudaStreamDestroy(stream);
}

void Cuda::throw_scratch_too_small(size_t bytes) const {
  throw Error(ExitCode::device,
              "an operation needs " + std::to_string(bytes >> 20) + " MiB of scratch memory and has " +
                  std::to_string(scratch_bytes >> 20),
              "lower --batch_size");
}

} // namespace gpt2
