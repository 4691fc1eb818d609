// Scale from amax: the same functions on the CPU and in the kernel that updates all scales (fp8_update.cu).
#pragma once

#include <cstdint>

#include "engine/base/host_device.h"

namespace gpt2 {

// New scale from the maximum of the history.
GPT2_HOST_DEVICE inline float fp8_scale(float amax, float format_max, int margin, float old_scale) {
  if (!(amax > 0.0f) || !(amax <= 3.0e38f)) return old_scale; // zero, NaN, infinity
  float scale = format_max / amax;
  if (scale * amax > format_max) scale *= 1.0f - 0x1.0p-23f; // rounding up would saturate amax itself
  for (int i = 0; i < margin; ++i) scale *= 0.5f;
  return scale <= 3.0e38f ? scale : old_scale; // a denormal amax would overflow the scale
}

// Delayed scaling of one tensor at the end of an applied step: writes amax to its slot of the history; on update steps
// the maximum of the history gives the new scale. A non-finite amax is stored as zero and keeps the scale.
GPT2_HOST_DEVICE inline float fp8_delayed_scale(float* history, int length, int slot, float amax, bool update,
                                                float format_max, int margin, float old_scale) {
  const bool finite = amax <= 3.0e38f; // false for NaN too
  history[slot] = finite ? amax : 0.0f;
  if (!finite || !update) return old_scale;
  float peak = 0.0f;
  for (int i = 0; i < length; ++i) peak = history[i] > peak ? history[i] : peak;
  return fp8_scale(peak, format_max, margin, old_scale);
}

// History after a calibration micro-batch. The amax takes the slot of the step before this one, so it stays as long as
// any step's.
GPT2_HOST_DEVICE inline void fp8_calibrated_history(float* history, int length, int64_t applied_steps, float amax) {
  const int slot = static_cast<int>((applied_steps + length - 1) % length);
  for (int i = 0; i < length; ++i) history[i] = i == slot && amax <= 3.0e38f ? amax : 0.0f;
}

} // namespace gpt2
