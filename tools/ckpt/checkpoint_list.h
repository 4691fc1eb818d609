#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// One line per checkpoint below the name of its run; the run that saved last comes last.
std::string describe_checkpoints(const std::vector<std::string>& checkpoint_dirs);

} // namespace gpt2
