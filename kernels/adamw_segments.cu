#include "kernels/adamw_segments.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/split_reduction.h"
#include "kernels/device/adamw.cuh"
#include "kernels/device/vector.cuh"

namespace gpt2 {

namespace {

constexpr int kThreads = 256;

// The squares of the thread's updates.
__device__ float apply_segment(const AdamWSegments& p) {
  if (p.scalars->verdict != Verdict::applied) return 0;
  const AdamWSegment segment = p.segments[blockIdx.y];
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= segment.count) return 0;
  const auto four = [](float* data) -> float4& { return *reinterpret_cast<float4*>(data); };
  const AdamWStep step(*p.scalars, *p.guard, p.lr, p.beta1, p.beta2, p.eps);
  const float decay = p.decay_mask[(segment.flat + i) / kDecayGranule] ? p.weight_decay : 0.0f;
  return apply_adamw(step, four(p.master + segment.compact + i), p.weights + segment.flat + i,
                     four(p.m + segment.compact + i), four(p.v + segment.second + i),
                     *reinterpret_cast<const float4*>(p.grad + segment.flat + i), decay);
}

// Block (part of the segment, segment).
__global__ void __launch_bounds__(kThreads) adamw_segments_kernel(AdamWSegments p, double* partials) {
  __shared__ double shared[kWarp];
  const double square = block_sum(static_cast<double>(apply_segment(p)), shared);
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = square * p.lr * p.lr;
}

} // namespace

void adamw_segments(CudaStream& cuda, const AdamWSegments& p) {
  if (p.count == 0) return;
  const NvtxRange range(cuda, "adamw", 30.0 * static_cast<double>(p.longest) * p.count);
  const dim3 grid(grid_size(p.longest / 4, kThreads), static_cast<unsigned>(p.count));
  const int64_t blocks = static_cast<int64_t>(grid.x) * grid.y;
  double* const partials = cuda.scratch<double>(static_cast<size_t>(blocks));
  adamw_segments_kernel<<<grid, kThreads, 0, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH("adamw_segments");
  add_partial_sums(cuda, p.update_square, partials, blocks);
}

} // namespace gpt2
