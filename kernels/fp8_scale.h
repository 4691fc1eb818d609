// How a scale follows from what was seen of a tensor: the same functions on the CPU and in the kernel that updates all
// scales (fp8_update.cu).
#pragma once

#include "engine/base/host_device.h"

namespace gpt2 {

// One new scale from a history maximum.
GPT2_HOST_DEVICE inline float fp8_scale(float amax, float format_max, int margin, float old_scale) {
  if (!(amax > 0.0f) || !(amax <= 3.0e38f)) return old_scale; // zero, NaN, infinity
  float scale = format_max / amax;
  if (scale * amax > format_max) scale *= 1.0f - 0x1.0p-23f; // rounded up: amax itself would count as saturated
  for (int i = 0; i < margin; ++i) scale *= 0.5f;
  return scale <= 3.0e38f ? scale : old_scale; // a denormal amax would overflow the scale
}

// The delayed scaling of one tensor at the end of an applied step: its amax takes its place in the ring and, on steps
// that update, the ring's maximum gives the new scale. An amax that is not finite counts as unknown: it takes its place
// as zero and the scale stays.
GPT2_HOST_DEVICE inline float fp8_delayed_scale(float* history, int length, int slot, float amax, bool update,
                                                float format_max, int margin, float old_scale) {
  const bool finite = amax <= 3.0e38f; // false for NaN too
  history[slot] = finite ? amax : 0.0f;
  if (!finite || !update) return old_scale;
  float peak = 0.0f;
  for (int i = 0; i < length; ++i) peak = history[i] > peak ? history[i] : peak;
  return fp8_scale(peak, format_max, margin, old_scale);
}

} // namespace gpt2
