// What the page shows, as one JSON object; page/page.js draws it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/report/run_metrics.h"

namespace gpt2 {

struct OptionDefault {
  std::string name, group;
  std::string json; // what the option is when nobody gives it
};

// "running": somebody holds the run's lock; "done": all steps are there; "diverged": it ended on skipped steps or on a
// loss that is no number; "stopped": anything else.
std::string state_of(const RunReader& run);

// Bounded whatever the runs hold: below 2 MB, shared out among them.
nlohmann::json page_data(const std::vector<RunReader>& runs, const std::vector<OptionDefault>& defaults);

} // namespace gpt2
