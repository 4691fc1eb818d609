// One thread per value.
#include "kernels/fill.h"

#include "engine/base/rng.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {

namespace {

constexpr int kThreads = 256;

__global__ void fill_normal_kernel(FillNormal p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.count) p.out[i] = static_cast<float>(p.deviation * Rng(p.seed, p.stream).normal(p.first + i));
}

template <class T>
__global__ void fill_constant_kernel(FillConstant<T> p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.count) p.out[i] = p.value;
}

template <class T>
void launch_constant(CudaStream& cuda, const FillConstant<T>& p) {
  fill_constant_kernel<<<grid_size(p.count, kThreads), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("fill_constant");
}

} // namespace

void fill_normal(CudaStream& cuda, const FillNormal& p) {
  fill_normal_kernel<<<grid_size(p.count, kThreads), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("fill_normal");
}

void fill_constant(CudaStream& cuda, const FillConstant<float>& p) { launch_constant(cuda, p); }
void fill_constant(CudaStream& cuda, const FillConstant<double>& p) { launch_constant(cuda, p); }

} // namespace gpt2
