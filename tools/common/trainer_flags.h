// Flags of the trainer that a tool was given.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/options/parse_options.h"

namespace gpt2 {

// parse_options() of words without a program's name. `version` is printed for --version.
std::optional<CommandLine> parse_trainer_flags(const std::vector<std::string>& flags, const std::string& version);

bool trains(const Options& options); // false: --plan, --print_config and the like

} // namespace gpt2
