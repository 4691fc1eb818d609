// The data of a page as one JSON object; page/page.js draws it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

struct OptionDefault {
  std::string name, group;
  std::string json; // the default value
};

// "running": a process holds the run's lock; "done": all steps are complete; "diverged": it ended on skipped steps or
// on a NaN or infinite loss; "stopped": it saved its last step, as after a signal; "failed": it ended without that
// save: killed, out of memory, a lost rank.
std::string state_of(const RunReader& run);
bool saved_step(const RunMetrics& metrics, int64_t step); // that step or a later one

// Of the steps after `done`, from a `run` line. --batch_ramp changes the size of a step.
double tokens_left(const nlohmann::json& run_line, int64_t done);

// "gpt2, 12 layers, 768 channels, 124.4M parameters", from a `run` line
std::string model_text(const nlohmann::json& run_line);

nlohmann::json number_json(double value); // six digits; null if not finite
nlohmann::json numbers_json(const std::vector<double>& values);

// Runs that a page shows as one curve, such as the seeds of an option set: mean, min and max.
struct PageGroup {
  std::string name;
  std::vector<const RunReader*> runs; // settings, samples, FP8 health and machine are those of the first run
};

// Below 2 MB in total, whatever the length and the number of the runs.
nlohmann::json page_data(const std::vector<PageGroup>& groups, const std::vector<OptionDefault>& defaults);
nlohmann::json page_data(const std::vector<RunReader>& runs, const std::vector<OptionDefault>& defaults);

} // namespace gpt2
