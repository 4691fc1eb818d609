#include "tools/prepare_data/our_script.h"

#include "engine/base/error.h"
#include "engine/system/files.h"

namespace gpt2 {

std::string find_script(const std::string& name, const std::string& what_it_does) {
  if (const std::string found = find_in_tree(name); !found.empty()) return found;
  throw Error(ExitCode::data, name + ", which " + what_it_does + ", was not found",
              "run bin/prepare_data in its source tree, or copy " + name + " next to its folder");
}

} // namespace gpt2
