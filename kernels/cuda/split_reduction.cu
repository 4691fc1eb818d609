#include "kernels/cuda/split_reduction.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/require.h"
#include "kernels/device/vector.cuh"

namespace gpt2 {

namespace {

constexpr int kLanes = 32;  // columns per block
constexpr int kGroups = 32; // rows added in parallel

__global__ void add_column_partials_kernel(ColumnSums p) {
  static_assert(kLanes == kWarp && kGroups == kWarp, "a warp adds the groups of a column");
  __shared__ float sums[kGroups][kLanes + 1];
  float* const out = p.out[blockIdx.y];
  if (!out) return;
  const float* const partials = p.partials + static_cast<int64_t>(blockIdx.y) * p.cols;
  const int64_t stride = static_cast<int64_t>(p.outputs) * p.cols;
  const int column = blockIdx.x * kLanes + threadIdx.x;
  float sum = 0;
  if (column < p.cols) {
#pragma unroll 8
    for (int i = threadIdx.y; i < p.count; i += kGroups) sum += partials[i * stride + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Transposed read: one warp adds the groups of one column.
  const float total = warp_sum(sums[threadIdx.x][threadIdx.y]);
  const int owned = blockIdx.x * kLanes + threadIdx.y;
  if (threadIdx.x == 0 && owned < p.cols) out[owned] += total;
}

__global__ void __launch_bounds__(1024) add_partial_sums_kernel(double* sum, const double* partials, int64_t count) {
  __shared__ double shared[kWarp];
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) own += partials[i];
  own = block_sum(own, shared);
  if (threadIdx.x == 0) *sum += own;
}

} // namespace

void add_column_partials(CudaStream& cuda, const ColumnSums& p) {
  const Requirements require("add_column_partials");
  require(p.outputs >= 1 && p.outputs <= 3, "outputs is 1 to 3");
  const dim3 grid(grid_size(p.cols, kLanes), static_cast<unsigned>(p.outputs));
  add_column_partials_kernel<<<grid, dim3(kLanes, kGroups), 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("add_column_partials");
}

void add_partial_sums(CudaStream& cuda, double* sum, const double* partials, int64_t count) {
  add_partial_sums_kernel<<<1, 1024, 0, cuda.stream>>>(sum, partials, count);
  CUDA_CHECK_LAUNCH("add_partial_sums");
}

} // namespace gpt2
