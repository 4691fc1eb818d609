// FP8 scaling on the device: once per step one kernel moves every amax into its history and sets the next scale, with
// the functions of the CPU emulation. GPU only.
#pragma once

#include "kernels/fp8_tensor.h"
#include "kernels/optimizer.h"

namespace gpt2 {

// Indexed by fp8_tensor_id(); in device memory.
struct Fp8Scales {
  Fp8TensorMeta* metas;   // (count) of the current step
  uint32_t* amaxes;       // (count) float bits, of the current step; reduced over ranks before it ends
  uint32_t* measured;     // (count) current scaling: amax of the first pass
  Fp8TensorMeta* seen;    // (count) of the last finished step, with its scales
  uint32_t* seen_amaxes;  // (count) of the last finished step
  float* history;         // (count, history_length) ring buffers of amaxes
  float* format_max;      // (count) 448 or 57344; 0: not quantized, or static scale
  int64_t* applied_steps; // (1) selects the slot of the history and the update steps
  int count, history_length, margin, interval;
};

// End of a step, after the verdict. A skipped step keeps history and scales; the statistics restart.
void fp8_end_step(CudaStream&, const Fp8Scales&, const StepScalars* step);

// Current scaling: sets the scale from the amax of the first pass.
struct Fp8CurrentScale {
  int id;
  bool shared; // the next tensor has the same values in another format: same amax
  bool noted;  // also updates the step's amax; not in evaluation
};
void fp8_set_current_scale(CudaStream&, const Fp8Scales&, const Fp8CurrentScale&);

// End of a calibration micro-batch: every history keeps only the new amax.
void fp8_end_calibration(CudaStream&, const Fp8Scales&);

} // namespace gpt2
