// How far a run is and what it trains, from its metrics.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/report/run_metrics.h"

namespace gpt2 {

// "running": a process holds the run's lock; "done": all steps are complete; "diverged": it ended on skipped steps or
// on a NaN or infinite loss; "stopped": it saved its last step, as after a signal; "failed": it ended without that
// save: killed, out of memory, a lost rank.
std::string state_of(const RunReader& run);
bool saved_step(const RunMetrics& metrics, int64_t step); // that step or a later one
bool ended_on_skips(const RunMetrics& metrics);           // on --max_skipped steps in a row

// Of the steps after `done`, from a `run` line. --batch_ramp changes the size of a step.
double tokens_left(const nlohmann::json& run_line, int64_t done);

// "gpt2, 12 layers, 768 channels, 124.4M parameters", from a `run` line
std::string model_text(const nlohmann::json& run_line);

} // namespace gpt2
