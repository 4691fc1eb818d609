// Casts and fills outside the step.
#include "kernels/cast.h"

#include <cuda_bf16.h>

#include "engine/base/rng.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {

namespace {

constexpr int kThreads = 256;

__global__ void cast_to_bf16_kernel(CastToBf16 p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.count / kVector) return;
  Float8 values;
#pragma unroll
  for (int k = 0; k < kVector; ++k) values.v[k] = p.in[i * kVector + k];
  store8(p.out, i, values);
}

__global__ void fill_normal_kernel(FillNormal p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.count) p.out[i] = static_cast<float>(p.deviation * Rng(p.seed, p.stream).normal(i));
}

__global__ void fill_constant_kernel(FillConstant p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.count) p.out[i] = p.value;
}

unsigned blocks(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); }

} // namespace

void cast_to_bf16(Cuda& cuda, const CastToBf16& p) {
  cast_to_bf16_kernel<<<blocks(p.count / kVector), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("cast_to_bf16");
}

void fill_normal(Cuda& cuda, const FillNormal& p) {
  fill_normal_kernel<<<blocks(p.count), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("fill_normal");
}

void fill_constant(Cuda& cuda, const FillConstant& p) {
  fill_constant_kernel<<<blocks(p.count), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("fill_constant");
}

} // namespace gpt2
