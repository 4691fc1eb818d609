// End of a step: global gradient norm, verdict, clipping and AdamW, without a host round trip.
#pragma once

#include "kernels/backend.h"
#include "kernels/step_verdict.h"

namespace gpt2 {

constexpr int64_t kDecayGranule = 256; // elements per byte of the decay mask

// Sums over micro-batches and shards: consecutive doubles, so that ranks reduce them in one call.
struct StepSums {
  double loss;        // nats, over the step's targets
  double tokens;      // targets that are not ignored; exact
  double norm_square; // squared norm of the gradient of the summed loss
  double stops;       // ranks with a pending stop request
};

// Sums of squares of what an update subtracts from the weights, without decay; filled under Muon.
struct UpdateSquares {
  double matrices; // of the blocks
  double adamw;    // all other tensors
};

// Result of a step; on the GPU in device memory, copied back once.
struct StepScalars {
  StepSums sums;
  float loss;       // sums.loss / sums.tokens
  float grad_norm;  // sqrt(sums.norm_square) / sums.tokens, before clipping
  float grad_scale; // the optimizer's factor for the summed gradient: clip factor / tokens
  Verdict verdict;
  UpdateSquares updates; // of this rank, then of all
};

// Loss, norm, verdict and AdamW's gradient scale from the step's sums; the same arithmetic on both backends. Without
// any target loss and norm are NaN, and the step is skipped.
GPT2_HOST_DEVICE inline void conclude_step(StepScalars& step, GuardState& guard, VerdictLimits limits,
                                           float grad_clip) {
  const double tokens = step.sums.tokens;
  const double norm = sqrt(step.sums.norm_square) / tokens;
  step.loss = static_cast<float>(step.sums.loss / tokens);
  step.grad_norm = static_cast<float>(norm);
  step.verdict = judge_step(guard, step.loss, step.grad_norm, limits);
  const double clip = grad_clip > 0 && norm > grad_clip ? grad_clip / norm : 1.0;
  step.grad_scale = step.verdict == Verdict::applied ? static_cast<float>(clip / tokens) : 0.0f;
}

// Adds the losses of one micro-batch and counts its targets.
struct LossAccumulate {
  StepSums* sums;         // loss +=, tokens +=
  const float* losses;    // (rows)
  const int32_t* targets; // (rows)
  int64_t rows;
};
void accumulate_loss(Cpu&, const LossAccumulate&);
void accumulate_loss(CudaStream&, const LossAccumulate&);

// Of one shard of the gradient.
struct GradientNorm {
  StepSums* sums;    // norm_square +=
  const float* grad; // (count)
  int64_t count;     // a multiple of 4
};
void gradient_norm(Cpu&, const GradientNorm&);
void gradient_norm(CudaStream&, const GradientNorm&);

// Sets loss, grad_norm, grad_scale and verdict from the sums of all ranks with judge_step().
struct JudgeStep {
  StepScalars* scalars;
  GuardState* guard;
  VerdictLimits limits;
  float grad_clip; // 0: off
};
void judge(Cpu&, const JudgeStep&);
void judge(CudaStream&, const JudgeStep&);

// One shard: w -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w), unless the step is skipped. t =
// guard->adam_step, already advanced by judge(). decay_mask[i / 256] == 0: no decay. Tensors start at multiples of 256
// elements, so one byte covers 256 elements.
template <class A>
struct AdamW {
  float* master;             // (count) FP32 weights
  A* weights;                // (count) copy for the forward pass; null if that is master itself
  float* m;                  // (count)
  float* v;                  // (count)
  const float* grad;         // (count), gradient of the summed loss
  const uint8_t* decay_mask; // (count / 256)
  const StepScalars* scalars;
  const GuardState* guard;
  int64_t count; // a multiple of 256
  float lr, beta1, beta2, eps, weight_decay;
  double* update_square = nullptr; // += squares of the update without decay; null: not wanted
};
void adamw(Cpu&, const AdamW<float>&);
void adamw(CudaStream&, const AdamW<bf16>&);

} // namespace gpt2
