// The recipe's state machine on the device: once a step, one kernel moves every tensor's amax into its history and sets
// the next scale, by the same functions as the CPU emulation. GPU only.
#pragma once

#include "kernels/fp8_tensor.h"
#include "kernels/optimizer.h"

namespace gpt2 {

// Indexed by fp8_tensor_id(); in device memory.
struct Fp8Scales {
  Fp8TensorMeta* metas;   // (count) of the step under way
  uint32_t* amaxes;       // (count) bits of floats, of the step under way: ranks maximise them before the step ends
  uint32_t* measured;     // (count) current scaling: of the tensor that is being measured
  Fp8TensorMeta* seen;    // (count) metas of the last step that ended, with the scales it was quantized with
  uint32_t* seen_amaxes;  // (count) and its amaxes
  float* history;         // (count, history_length) rings of amaxes
  float* format_max;      // (count) 448 or 57344; 0: not quantized, or with a static scale: left alone
  int64_t* applied_steps; // (1) gives the ring's slot and the interval
  int count, history_length, margin, interval;
};

// End of a step, after the verdict. A skipped step leaves history and scales alone; the metas start afresh.
void fp8_end_step(CudaStream&, const Fp8Scales&, const StepScalars* step);

// Current scaling: the tensor takes the scale of the amax that was just measured of it, and of nothing else.
struct Fp8CurrentScale {
  int id;
  bool shared; // the tensor after it holds the same values in another format, and takes its scale from the same amax
  bool noted;  // the step's amax sees it too; not in an evaluation
};
void fp8_set_current_scale(CudaStream&, const Fp8Scales&, const Fp8CurrentScale&);

// End of a calibrating micro-batch: every history forgets all but the amax just seen.
void fp8_end_calibration(CudaStream&, const Fp8Scales&);

} // namespace gpt2
