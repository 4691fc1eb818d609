// The end of a step: global gradient norm, verdict, clipping and AdamW, with no word from the host in between.
#pragma once

#include "kernels/backend.h"
#include "kernels/step_verdict.h"

namespace gpt2 {

constexpr int64_t kDecayGranule = 256; // elements that one byte of the decay mask speaks for

// What a step adds up, over micro-batches and shards: one block of doubles, so that ranks can add it in one go.
struct StepSums {
  double loss;        // nats over the step's targets
  double tokens;      // targets that counted; exact
  double norm_square; // of the gradient of the sum
  double stops;       // ranks that were asked to stop
};

// Sums of squares of what an update subtracts from the weights, without decay; taken under Muon.
struct UpdateSquares {
  double matrices; // of the blocks
  double adamw;    // all else
};

// What the step came to; on the GPU it lives in device memory and is copied back once.
struct StepScalars {
  StepSums sums;
  float loss;       // sums.loss / sums.tokens
  float grad_norm;  // sqrt(sums.norm_square) / sums.tokens, before clipping
  float grad_scale; // what the optimizer multiplies the summed gradient with: clip factor / tokens
  Verdict verdict;
  UpdateSquares updates; // of this rank, then of all
};

// Loss, norm, verdict and AdamW's gradient scale from the step's sums; the same arithmetic on both backends. Without a
// single target, loss and norm are NaN and the step is skipped.
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

// Of one slice of the gradient: a rank sums those it owns.
struct GradientNorm {
  StepSums* sums;    // norm_square +=
  const float* grad; // (count)
  int64_t count;     // a multiple of 4
};
void gradient_norm(Cpu&, const GradientNorm&);
void gradient_norm(CudaStream&, const GradientNorm&);

// Fills loss, grad_norm, grad_scale and verdict from the sums of all ranks, by judge_step().
struct JudgeStep {
  StepScalars* scalars;
  GuardState* guard;
  VerdictLimits limits;
  float grad_clip; // 0: off
};
void judge(Cpu&, const JudgeStep&);
void judge(CudaStream&, const JudgeStep&);

// One slice, as of the norm: w -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w), unless the
// verdict says skip. t = guard->adam_step, already advanced by judge(). Where decay_mask[i / 256] is 0 there is no
// decay: tensors start at multiples of 256 elements, so one byte speaks for 256 elements.
template <class A>
struct AdamW {
  float* master;             // (count) FP32 weights
  A* weights;                // (count) copy that the forward pass reads; null where that is master itself
  float* m;                  // (count)
  float* v;                  // (count)
  const float* grad;         // (count), of the sum over tokens
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
