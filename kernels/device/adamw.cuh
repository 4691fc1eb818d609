// AdamW on four neighboring parameters.
#pragma once

#include <cuda_bf16.h>

#include "kernels/optimizer.h"

namespace gpt2 {

// What a step has for all parameters alike.
struct AdamWStep {
  float lr, beta1, beta2, eps, grad_scale, correction1, correction2;

  __device__ AdamWStep(const StepScalars& scalars, const GuardState& guard, float lr, float beta1, float beta2,
                       float eps)
      : lr(lr), beta1(beta1), beta2(beta2), eps(eps), grad_scale(scalars.grad_scale) {
    const float step = static_cast<float>(guard.adam_step);
    correction1 = 1.0f / (1.0f - powf(beta1, step));
    correction2 = 1.0f / (1.0f - powf(beta2, step));
  }
};

// 30 bytes per parameter: master, m and v read and written, gradient read, BF16 copy written. Returns the squares of
// the updates, without rate and decay.
__device__ inline float apply_adamw(const AdamWStep& s, float4& master, bf16* weights, float4& first, float4& second,
                                    const float4& grad, float decay) {
  float4 w = master, m = first, v = second;
  const float4 g = __ldcs(&grad);
  float square = 0;
  auto apply = [&](float& w, float& m, float& v, float g) {
    g *= s.grad_scale;
    m = s.beta1 * m + (1.0f - s.beta1) * g;
    v = s.beta2 * v + (1.0f - s.beta2) * g * g;
    const float update = m * s.correction1 / (sqrtf(v * s.correction2) + s.eps);
    w -= s.lr * (update + decay * w);
    square += update * update;
  };
  apply(w.x, m.x, v.x, g.x);
  apply(w.y, m.y, v.y, g.y);
  apply(w.z, m.z, v.z, g.z);
  apply(w.w, m.w, v.w, g.w);
  master = w;
  first = m;
  second = v;
  auto* const out = reinterpret_cast<__nv_bfloat162*>(weights);
  out[0] = __floats2bfloat162_rn(w.x, w.y);
  out[1] = __floats2bfloat162_rn(w.z, w.w);
  return square;
}

} // namespace gpt2
