// End of a step on the device: deterministic sums, a one-thread verdict, AdamW predicated on it.
#include "kernels/optimizer.h"

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/require.h"
#include "kernels/cuda/split_reduction.h"
#include "kernels/device/adamw.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/ignored_target.h"

namespace gpt2 {

namespace {

// One CTA: 8 bytes per row, 0.5 MB at 65,536 tokens.
__global__ void __launch_bounds__(1024) accumulate_loss_kernel(LossAccumulate p) {
  __shared__ double shared_sum[kWarp];
  __shared__ long long shared_count[kWarp];
  double sum = 0;
  long long count = 0;
  for (int64_t i = threadIdx.x; i < p.rows; i += blockDim.x) {
    sum += p.losses[i];
    count += p.targets[i] != kIgnoredTarget;
  }
  sum = block_sum(sum, shared_sum);
  count = block_sum(count, shared_count);
  if (threadIdx.x != 0) return;
  p.sums->loss += sum;
  p.sums->tokens += static_cast<double>(count);
}

constexpr int kNormThreads = 512;

__global__ void __launch_bounds__(kNormThreads) square_sum_kernel(const float4* grad, int64_t count, double* partials) {
  __shared__ double shared[kWarp];
  float sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kNormThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kNormThreads) {
    const float4 g = grad[i];
    sum += g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
  }
  const double total = block_sum(static_cast<double>(sum), shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void judge_kernel(JudgeStep p) { conclude_step(*p.scalars, *p.guard, p.limits, p.grad_clip); }

// The squares of the thread's updates.
__device__ float apply_to_four(const AdamW<bf16>& p) {
  if (p.scalars->verdict != Verdict::applied) return 0;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; // groups of 4
  if (i >= p.count / 4) return 0;
  const AdamWStep step(*p.scalars, *p.guard, p.lr, p.beta1, p.beta2, p.eps);
  return apply_adamw(step, reinterpret_cast<float4*>(p.master)[i], p.weights + 4 * i, reinterpret_cast<float4*>(p.m)[i],
                     reinterpret_cast<float4*>(p.v)[i], reinterpret_cast<const float4*>(p.grad)[i],
                     p.decay_mask[i / 64] ? p.weight_decay : 0.0f);
}

__global__ void __launch_bounds__(256) adamw_kernel(AdamW<bf16> p) { apply_to_four(p); }

__global__ void __launch_bounds__(256) adamw_and_square_kernel(AdamW<bf16> p, double* partials) {
  __shared__ double shared[kWarp];
  const double square = block_sum(static_cast<double>(apply_to_four(p)), shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = square * p.lr * p.lr;
}

} // namespace

void accumulate_loss(CudaStream& cuda, const LossAccumulate& p) {
  const NvtxRange range(cuda, "accumulate_loss", 8.0 * static_cast<double>(p.rows));
  accumulate_loss_kernel<<<1, 1024, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("accumulate_loss");
}

void gradient_norm(CudaStream& cuda, const GradientNorm& p) {
  const NvtxRange range(cuda, "gradient_norm", 4.0 * static_cast<double>(p.count));
  const Requirements require("gradient_norm");
  require(p.count % 4 == 0, "count is a multiple of 4");
  const int blocks = cuda.device->multiprocessors * 4;
  double* const partials = cuda.scratch<double>(blocks);
  square_sum_kernel<<<blocks, kNormThreads, 0, cuda.stream>>>(reinterpret_cast<const float4*>(p.grad), p.count / 4,
                                                              partials);
  CUDA_CHECK_LAUNCH("square_sum");
  add_partial_sums(cuda, &p.sums->norm_square, partials, blocks);
}

void judge(CudaStream& cuda, const JudgeStep& p) {
  const NvtxRange range(cuda, "judge", 0);
  judge_kernel<<<1, 1, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("judge");
}

void adamw(CudaStream& cuda, const AdamW<bf16>& p) {
  const NvtxRange range(cuda, "adamw", 30.0 * static_cast<double>(p.count));
  const Requirements require("adamw");
  require(p.count % kDecayGranule == 0, "count is a multiple of 256");
  const unsigned blocks = grid_size(p.count / 4, 256);
  if (!p.update_square) {
    adamw_kernel<<<blocks, 256, 0, cuda.stream>>>(p);
    CUDA_CHECK_LAUNCH("adamw");
    return;
  }
  double* const partials = cuda.scratch<double>(blocks);
  adamw_and_square_kernel<<<blocks, 256, 0, cuda.stream>>>(p, partials);
  CUDA_CHECK_LAUNCH("adamw_and_square");
  add_partial_sums(cuda, p.update_square, partials, blocks);
}

} // namespace gpt2
