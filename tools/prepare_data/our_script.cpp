#include "tools/prepare_data/our_script.h"

#include "engine/base/error.h"
#include "engine/system/files.h"

namespace gpt2 {

std::string find_script(const std::string& name, const std::string& what_it_does) {
  if (const std::string found = find_in_tree(name); !found.empty()) return found;
  throw Error(ExitCode::data, name + ", which " + what_it_does + ", is not here",
              "run bin/prepare_data of the tree it was built in, or copy " + name + " to a folder beside it");
}

} // namespace gpt2
