// Casts outside the step.
#include "kernels/cast.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/require.h"
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

} // namespace

void cast_to_bf16(CudaStream& cuda, const CastToBf16& p) {
  const Requirements require("cast_to_bf16");
  require(p.count % kVector == 0, "count is a multiple of 8");
  cast_to_bf16_kernel<<<grid_size(p.count / kVector, kThreads), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("cast_to_bf16");
}

} // namespace gpt2
