#include "kernels/cuda/partial_sums.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {

namespace {

__global__ void __launch_bounds__(1024) add_kernel(double* sum, const double* partials, int64_t count) {
  __shared__ double shared[kWarp];
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) own += partials[i];
  own = block_sum(own, shared);
  if (threadIdx.x == 0) *sum += own;
}

} // namespace

void add_partial_sums(CudaStream& cuda, double* sum, const double* partials, int64_t count) {
  add_kernel<<<1, 1024, 0, cuda.stream>>>(sum, partials, count);
  CUDA_CHECK_LAUNCH("add_partial_sums");
}

} // namespace gpt2
