// FP8 scales and histories: one thread per tensor.
#include "kernels/fp8_update.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/profile.h"
#include "kernels/device/vector.cuh"
#include "kernels/fp8_scale.h"

namespace gpt2 {

namespace {

constexpr int kThreads = 128;

__device__ void set_scale(Fp8TensorMeta& meta, float scale) {
  meta.scale = scale;
  meta.scale_inv = 1.0f / scale;
}

__device__ void reset_statistics(const Fp8Scales& p, int i) {
  p.amaxes[i] = 0;
  p.metas[i].saturated = 0;
  p.metas[i].flushed = 0;
}

__global__ void end_step_kernel(Fp8Scales p, const StepScalars* step) {
  const bool applied = step->verdict == Verdict::applied;
  const int64_t steps = *p.applied_steps;
  __syncthreads(); // one CTA: all threads have read the count before it advances
  for (int i = threadIdx.x; i < p.count; i += blockDim.x) {
    Fp8TensorMeta& meta = p.metas[i];
    p.seen[i] = meta;
    p.seen_amaxes[i] = p.amaxes[i];
    if (applied && p.format_max[i] > 0) {
      const int slot = static_cast<int>(steps % p.history_length);
      const bool update = (steps + 1) % p.interval == 0;
      set_scale(meta, fp8_delayed_scale(p.history + static_cast<int64_t>(i) * p.history_length, p.history_length, slot,
                                        __uint_as_float(p.amaxes[i]), update, p.format_max[i], p.margin, meta.scale));
    }
    reset_statistics(p, i);
  }
  if (threadIdx.x == 0 && applied) *p.applied_steps = steps + 1;
}

__global__ void set_current_scale_kernel(Fp8Scales p, Fp8CurrentScale now) {
  const uint32_t amax = p.measured[now.id];
  p.measured[now.id] = 0;
  for (int i = now.id; i <= now.id + now.shared; ++i) {
    if (!(p.format_max[i] > 0)) continue;
    set_scale(p.metas[i], fp8_scale(__uint_as_float(amax), p.format_max[i], p.margin, p.metas[i].scale));
    if (now.noted) p.amaxes[i] = max(p.amaxes[i], amax);
  }
}

__global__ void end_calibration_kernel(Fp8Scales p) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= p.count) return;
  fp8_calibrated_history(p.history + static_cast<int64_t>(i) * p.history_length, p.history_length, *p.applied_steps,
                         __uint_as_float(p.amaxes[i]));
  reset_statistics(p, i);
}

} // namespace

void fp8_end_step(CudaStream& cuda, const Fp8Scales& p, const StepScalars* step) {
  const NvtxRange range(cuda, "fp8_end_step", 0);
  end_step_kernel<<<1, 1024, 0, cuda.stream>>>(p, step);
  CUDA_CHECK_LAUNCH("fp8_end_step");
}

void fp8_set_current_scale(CudaStream& cuda, const Fp8Scales& p, const Fp8CurrentScale& now) {
  set_current_scale_kernel<<<1, 1, 0, cuda.stream>>>(p, now);
  CUDA_CHECK_LAUNCH("fp8_set_current_scale");
}

void fp8_end_calibration(CudaStream& cuda, const Fp8Scales& p) {
  end_calibration_kernel<<<grid_size(p.count, kThreads), kThreads, 0, cuda.stream>>>(p);
  CUDA_CHECK_LAUNCH("fp8_end_calibration");
}

} // namespace gpt2
