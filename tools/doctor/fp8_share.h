// The share of FP8 in a run: in FLOPs for both engines, in time on a GPU.
#pragma once

#include "engine/model/model.h"
#include "tools/doctor/finding.h"
#include "tools/plan/dry_run.h"

namespace gpt2 {

bool gpu_has_fp8(const PlannedRun& run); // FP8 GEMMs work on it

// `model` trains in FP8. May run one of its micro-steps.
Finding fp8_share(const PlannedRun& run, Model& model);

} // namespace gpt2
