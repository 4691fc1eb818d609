// Runs that differ in their seed alone, as one group; and what can be said of groups before any loss is compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report/page_data.h"
#include "tools/report/run_metrics.h"

namespace gpt2 {

using RunGroup = PageGroup; // its runs: one a seed

// Runs that differ in their seed alone are a group, in the order of first sight; its name is what tells it apart, or
// the name of the run. Throws Error(usage) if there are not two groups.
std::vector<RunGroup> group_by_options(const std::vector<RunReader>& runs);

int64_t seed_of(const RunReader& run);

void check_groups(const std::vector<RunGroup>& groups); // throws Error(usage) if two have one name, or one a seed twice

bool is_ruined(const RunReader& run);          // its last loss is no number
bool has_ruined(const RunGroup& group);        // a run that is
std::string trouble_of(const RunGroup& group); // "1 diverged, 2 not finished"; empty: all are done

// What makes a comparison of them doubtful: other data, other devices.
std::vector<std::string> doubts(const std::vector<RunGroup>& groups);

} // namespace gpt2
