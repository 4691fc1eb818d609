// The data of a page as one JSON object; page/page.js draws it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/report/run_metrics.h"

namespace gpt2 {

nlohmann::json number_json(double value); // six digits; null if not finite
nlohmann::json numbers_json(const std::vector<double>& values);

// Runs that a page shows as one curve, such as the seeds of an option set: mean, min and max.
struct PageGroup {
  std::string name;
  std::vector<const RunReader*> runs; // settings, samples, FP8 health and machine are those of the first run
};

// Below 2 MB in total, whatever the length and the number of the runs.
nlohmann::json page_data(const std::vector<PageGroup>& groups);
nlohmann::json page_data(const std::vector<RunReader>& runs);

} // namespace gpt2
