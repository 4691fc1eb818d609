// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "engine/options/batch_ramp.h"

namespace gpt2 {

enum class Decay { cosine, linear, constant, wsd };

struct Schedule {
  Decay decay = Decay::cosine;
  float max_lr = 6e-4f;
  float min_lr_ratio = 0.1f;    // the last step, max_steps - 1, has min_lr_ratio * max_lr unless still in warm-up
  int64_t warmup_steps = 0;     // linear from max_lr / warmup_steps
  int64_t max_steps = 1;        // of the run
  float wsd_decay_ratio = 0.2f; // wsd (warm-up, stable, decay): share of max_steps that cools down linearly
  BatchRamp ramp = {};          // the rate is multiplied by sqrt(batch of the step / last batch)
};

// `step` counts from 0. From max_steps on, the last rate stays.
float learning_rate(const Schedule& schedule, int64_t step);

// Steps of wsd below the peak: at least 1, unless the ratio is 0.
int64_t cooling_steps(const Schedule& schedule);

// Completed steps before wsd's cooldown; max_steps without one. Up to there every longer run has the same rates.
int64_t cooldown_start(const Schedule& schedule);

} // namespace gpt2
