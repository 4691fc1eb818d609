// What the page of a report compares a run's options with.
#pragma once

#include <vector>

#include "tools/report/page_data.h"

namespace gpt2 {

std::vector<OptionDefault> option_defaults(); // of the trainer, in the order of its help

} // namespace gpt2
