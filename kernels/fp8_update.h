// The recipe's state machine on the device: once a step, one kernel moves every tensor's amax into its history and sets
// the next scale, by the same functions as the CPU emulation. GPU only.
#pragma once

#include "kernels/fp8_tensor.h"
#include "kernels/optimizer.h"

namespace gpt2 {

// Indexed by fp8_tensor_id(); in device memory.
struct Fp8Scales {
  Fp8Meter* meters;        // (count) of the step under way
  Fp8Meter* seen;          // (count) of the last step that ended, with the scales it was quantized with
  float* history;          // (count, history_length) rings of amaxes
  const float* format_max; // (count) 448 or 57344; 0: not quantized, or with a static scale: left alone
  int64_t* applied_steps;  // (1) gives the ring's slot and the interval
  int count, history_length, margin, interval;
};

// End of a step, after the verdict. A skipped step leaves history and scales alone; the meters start afresh.
void fp8_end_step(Cuda&, const Fp8Scales&, const StepScalars* step);

// Current scaling: the meter takes the scale of its own amax at once. The amax stays, so that the
// history sees it at the end of the step; the counters are cleared for the pass that follows. `shared`: the meter after
// it quantizes the same values in another format, and takes its scale from the same amax.
void fp8_scale_now(Cuda&, const Fp8Scales&, int id, bool shared);

// End of a calibrating micro-batch: every history forgets all but the amax just seen.
void fp8_end_calibration(Cuda&, const Fp8Scales&);

// What was seen since the last step ended is forgotten: it came from an evaluation.
void fp8_forget(Cuda&, const Fp8Scales&);

} // namespace gpt2
