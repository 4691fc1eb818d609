// The defaults that a report compares a run's options with.
#pragma once

#include <vector>

#include "tools/report/page_data.h"

namespace gpt2 {

std::vector<OptionDefault> option_defaults(); // the trainer's, in the order of its help

} // namespace gpt2
