// The table that opens a run: every setting that matters, resolved.
#pragma once

#include <string>

#include "engine/model/model.h"
#include "engine/train/run_data.h"
#include "engine/train/run_plan.h"

namespace gpt2 {

std::string start_table(const RunPlan& plan, const RunData& data, ObservableModel& model, int ranks,
                        const std::string& log_folder);

std::string new_run_name(const GPT2Config& config, Precision precision); // "nano-fp32-20261115-014400"

} // namespace gpt2
