// The Python programs of tools/ that others of our programs run.
#pragma once

#include <string>

namespace gpt2 {

// The path of a script, "tools/NAME.py": beside this program or in the tree that it was built in (find_in_tree).
// Throws Error(data) that says what it does.
std::string find_script(const std::string& name, const std::string& what_it_does);

} // namespace gpt2
