// What the page shows, as one JSON object; page/page.js draws it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

struct OptionDefault {
  std::string name, group;
  std::string json; // what the option is when nobody gives it
};

// "running": somebody holds the run's lock; "done": all steps are there; "diverged": it ended on skipped steps or on a
// loss that is no number; "stopped": anything else.
std::string state_of(const RunReader& run);

nlohmann::json number_json(double value); // six digits; null: not finite
nlohmann::json numbers_json(const std::vector<double>& values);

// Runs that a page shows as one, such as the seeds of an option set: their mean, with the least and the greatest.
struct PageGroup {
  std::string name;
  std::vector<const RunReader*> runs; // settings, samples, FP8 health and machine are those of the first
};

// Bounded whatever the runs hold: below 2 MB, shared out among them.
nlohmann::json page_data(const std::vector<PageGroup>& groups, const std::vector<OptionDefault>& defaults);
nlohmann::json page_data(const std::vector<RunReader>& runs, const std::vector<OptionDefault>& defaults);

} // namespace gpt2
