// Probes the GPU, its driver, and cuBLASLt's FP8 GEMMs, once at start.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include "engine/base/formatted.h"
#include "engine/cuda/gpt2_cuda.h"
#include "engine/nccl/communicator.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/open_device.h"
#include "kernels/gemm_fp8.h"

namespace gpt2 {

namespace {

// The three GEMMs of a small linear layer on zeros, in the formats of --fp8_format hybrid.
void run_zero_gemms(CudaStream& cuda) {
  constexpr int N = 64;
  constexpr size_t kBytes = N * N, kFloats = N * N * sizeof(float);
  const DeviceMemory memory(2 * kBytes + kFloats + sizeof(Fp8TensorMeta));
  CUDA_CHECK(cudaMemsetAsync(memory.data(), 0, 2 * kBytes + kFloats + sizeof(Fp8TensorMeta), cuda.stream));
  const auto* const data = reinterpret_cast<const uint8_t*>(memory.data());
  const auto* const meta = reinterpret_cast<const Fp8TensorMeta*>(memory.data() + 2 * kBytes + kFloats);
  const Fp8Tensor value{.data = data, .format = Fp8Format::e4m3, .meta = meta};
  const Fp8Tensor gradient{.data = data + kBytes, .format = Fp8Format::e5m2, .meta = meta};
  void* const out = memory.data() + 2 * kBytes;
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

void limit_cuda_memory(int64_t bytes) { limit_device_memory(static_cast<size_t>(bytes)); }

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
    info.why_not = "GPU " + std::to_string(device) + " does not exist: this process sees " + counted(devices, "GPU");
    return info;
  }
  cudaDeviceProp properties{};
  size_t free = 0, total = 0;
  if (cudaSetDevice(device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess ||
      device_memory_info(&free, &total) != cudaSuccess) {
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
    options.deterministic = true; // the first plan, without timing
    CudaStream cuda(open_device(options));
    run_zero_gemms(cuda);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

} // namespace gpt2
