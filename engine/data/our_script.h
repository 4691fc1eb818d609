// The Python programs of tools/ that others of our programs run.
#pragma once

#include <string>

namespace gpt2 {

// The path of a script, "tools/NAME.py": in the tree that this program was built in, or in the working folder.
// Throws Error(data) that says what it does.
std::string find_script(const std::string& name, const std::string& what_it_does);

} // namespace gpt2
