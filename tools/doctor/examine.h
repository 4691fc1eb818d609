// bin/doctor: checks whether this machine is ready for a run.
#pragma once

#include <string>
#include <vector>

#include "engine/options/parse_options.h"
#include "tools/doctor/finding.h"

namespace gpt2 {

// Runs all checks. Throws Error(usage) for options that the trainer refuses; everything else is a finding.
std::vector<Finding> examine(const CommandLine& command_line, const std::string& verified_data, const Report& report);

} // namespace gpt2
