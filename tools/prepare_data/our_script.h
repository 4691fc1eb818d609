// Finds the Python scripts of tools/ that bin/prepare_data runs.
#pragma once

#include <string>

namespace gpt2 {

// The path of "tools/NAME.py": next to this program or in its source tree (find_in_tree). Throws Error(data).
std::string find_script(const std::string& name, const std::string& what_it_does);

} // namespace gpt2
