// Anomaly guard: decides whether to apply a step. One function for both engines: the CPU calls it, the GPU runs it in a
// one-thread kernel, so AdamW is predicated on it without a host round trip.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/base/host_device.h"

namespace gpt2 {

enum class Verdict : int32_t {
  applied = 0,
  skipped_nonfinite = 1, // loss or norm is NaN or infinite
  skipped_loss_z = 2,    // loss is an outlier of the window
  skipped_norm_z = 3,    // gradient norm is an outlier of the window
};

struct VerdictLimits {
  float loss_z = 0; // standard deviations; 0: off
  float norm_z = 0;
};

// In device memory, saved in checkpoints. Plain data, copied as bytes.
struct GuardState {
  static constexpr int kWindow = 128; // applied steps
  static constexpr int kMinimum = 32; // entries needed for a z-score
  float losses[kWindow];              // ring buffers
  float norms[kWindow];
  int32_t filled; // entries in use
  int32_t next;   // next entry of the ring buffers
  int32_t skipped_in_a_row;
  int32_t pad_;
  int64_t adam_step; // applied updates: t of Adam's bias correction
};

GPT2_HOST_DEVICE inline float z_score(const float* window, int filled, float value) {
  float mean = 0, square = 0;
  for (int i = 0; i < filled; ++i) mean += window[i];
  mean /= static_cast<float>(filled);
  for (int i = 0; i < filled; ++i) square += (window[i] - mean) * (window[i] - mean);
  const float deviation = sqrtf(square / static_cast<float>(filled));
  return deviation > 0 ? (value - mean) / deviation : 0;
}

// Judges the step. If it is applied: records loss and norm, advances adam_step.
GPT2_HOST_DEVICE inline Verdict judge_step(GuardState& guard, float loss, float norm, VerdictLimits limits) {
  Verdict verdict = Verdict::applied;
  if (!(fabsf(loss) <= 3.0e38f) || !(fabsf(norm) <= 3.0e38f)) { // false for NaN too
    verdict = Verdict::skipped_nonfinite;
  } else if (guard.filled >= GuardState::kMinimum) {
    if (limits.loss_z > 0 && z_score(guard.losses, guard.filled, loss) > limits.loss_z)
      verdict = Verdict::skipped_loss_z;
    else if (limits.norm_z > 0 && z_score(guard.norms, guard.filled, norm) > limits.norm_z)
      verdict = Verdict::skipped_norm_z;
  }
  if (verdict != Verdict::applied) {
    guard.skipped_in_a_row += 1;
    return verdict;
  }
  guard.losses[guard.next] = loss;
  guard.norms[guard.next] = norm;
  guard.next = (guard.next + 1) % GuardState::kWindow;
  if (guard.filled < GuardState::kWindow) guard.filled += 1;
  guard.skipped_in_a_row = 0;
  guard.adam_step += 1;
  return verdict;
}

} // namespace gpt2
