// What is there: the GPU, its driver, and whether its cuBLASLt multiplies in FP8. Asked once at start, before a model
// is built on the answer.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include "engine/cuda/gpt2_cuda.h"
#include "engine/nccl/communicator.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/open_device.h"
#include "kernels/gemm_fp8.h"

namespace gpt2 {

namespace {

// The three products of a linear layer as small as they get, in the formats of the hybrid recipe: all zeros.
void multiply_zeros(CudaStream& cuda) {
  constexpr int N = 64;
  constexpr size_t kCodes = N * N, kFloats = N * N * sizeof(float);
  const DeviceMemory memory(2 * kCodes + kFloats + sizeof(Fp8TensorMeta));
  CUDA_CHECK(cudaMemsetAsync(memory.data(), 0, 2 * kCodes + kFloats + sizeof(Fp8TensorMeta), cuda.stream));
  const auto* const codes = reinterpret_cast<const uint8_t*>(memory.data());
  const auto* const meta = reinterpret_cast<const Fp8TensorMeta*>(memory.data() + 2 * kCodes + kFloats);
  const Fp8Tensor value{.data = codes, .format = Fp8Format::e4m3, .meta = meta};
  const Fp8Tensor gradient{.data = codes + kCodes, .format = Fp8Format::e5m2, .meta = meta};
  void* const out = memory.data() + 2 * kCodes;
  gemm_forward_fp8(
      cuda,
      {.out = static_cast<bf16*>(out), .in = value, .weight = value, .bias = nullptr, .rows = N, .C = N, .OC = N});
  gemm_backward_input_fp8(
      cuda, {.din = static_cast<bf16*>(out), .dout = gradient, .weight_t = value, .rows = N, .C = N, .OC = N});
  gemm_backward_weight_fp8(
      cuda, {.dweight = static_cast<float*>(out), .dout_t = gradient, .in_t = value, .rows = N, .C = N, .OC = N});
  CUDA_CHECK(cudaStreamSynchronize(cuda.stream));
}

} // namespace

int cuda_device_count() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

std::string cuda_library_versions() {
  const size_t blas = cublasLtGetVersion();
  const NcclVersion nccl = nccl_version();
  return "cuBLASLt " + std::to_string(blas / 10000) + "." + std::to_string(blas / 100 % 100) + "." +
         std::to_string(blas % 100) + ", NCCL " + (nccl.found ? nccl.text : "none");
}

int cuda_runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

CudaDeviceInfo probe_cuda_device(int device) {
  CudaDeviceInfo info;
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    info.why_not = driver == 0 ? "no NVIDIA driver"
                               : "the NVIDIA driver (CUDA " + std::to_string(driver / 1000) + "." +
                                     std::to_string(driver % 1000 / 10) + ") is older than this program's CUDA " +
                                     std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10);
    return info;
  }
  if (status != cudaSuccess || devices == 0) {
    info.why_not = status == cudaSuccess || status == cudaErrorNoDevice ? "no GPU" : cudaGetErrorString(status);
    return info;
  }
  if (device < 0 || device >= devices) {
    info.why_not = "there is no GPU " + std::to_string(device) + ": this process sees " + std::to_string(devices);
    return info;
  }
  cudaDeviceProp properties{};
  size_t free = 0, total = 0;
  if (cudaSetDevice(device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess ||
      cudaMemGetInfo(&free, &total) != cudaSuccess) {
    info.why_not = cudaGetErrorString(cudaGetLastError());
    return info;
  }
  info.name = properties.name;
  for (const char byte : properties.uuid.bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    info.uuid += digits;
  }
  info.compute_capability = properties.major * 10 + properties.minor;
  info.free_bytes = static_cast<int64_t>(free);
  info.usable = info.compute_capability >= 80;
  if (!info.usable) info.why_not = info.name + " has compute capability below 8.0, which BF16 needs";
  if (info.usable) require_device_code(device);
  return info;
}

std::string fp8_refusal(int device) {
  try {
    CudaOptions options;
    options.device = device;
    options.deterministic = true; // the first plan will do, without timing
    CudaStream cuda(open_device(options));
    multiply_zeros(cuda);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

} // namespace gpt2
