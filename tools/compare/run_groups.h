// Groups of runs that differ only in their seed, and checks of groups before losses are compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report/page_data.h"
#include "tools/report/run_metrics.h"

namespace gpt2 {

using RunGroup = PageGroup; // one run per seed

// Groups runs that differ only in their seed, in the order of their first run. A group is named after its differing
// options or after its first run. Throws Error(usage) if there are fewer than two groups.
std::vector<RunGroup> group_by_options(const std::vector<RunReader>& runs);

int64_t seed_of(const RunReader& run);

void check_groups(const std::vector<RunGroup>& groups); // throws Error(usage): a repeated name or seed

bool has_diverged(const RunReader& run); // its last loss is NaN or infinite, or it ended on skipped steps
bool any_diverged(const RunGroup& group);
std::string trouble_of(const RunGroup& group); // "1 diverged, 2 stopped early"; empty: all finished

// Reasons to doubt a comparison: different data or devices.
std::vector<std::string> doubts(const std::vector<RunGroup>& groups);

} // namespace gpt2
