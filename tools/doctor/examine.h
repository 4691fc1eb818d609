// bin/doctor: is this machine ready for that run?
#pragma once

#include <string>
#include <vector>

#include "engine/train/options.h"
#include "tools/doctor/finding.h"

namespace gpt2 {

// All checks, in turn. Throws Error(usage) for options that a run would refuse as such; all else is a finding.
std::vector<Finding> examine(const CommandLine& command_line, const std::string& verified_data, const Report& report);

} // namespace gpt2
