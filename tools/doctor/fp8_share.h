// How much of a run FP8 does: counted for both engines, timed on a GPU.
#pragma once

#include "engine/model/model.h"
#include "engine/train/plan_run.h"
#include "tools/doctor/finding.h"

namespace gpt2 {

bool gpu_has_fp8(const PlannedRun& run); // its products work there

// `model` trains in FP8; one of its micro-steps may be run.
Finding fp8_share(const PlannedRun& run, Model& model);

} // namespace gpt2
