#include "engine/data/our_script.h"

#include <filesystem>

#include "engine/base/error.h"

namespace gpt2 {
namespace fs = std::filesystem;

std::string find_script(const std::string& name, const std::string& what_it_does) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& root : {program.parent_path(), fs::path(".")}) { // tools stand one folder below the tree's root
    if (fs::exists(root / name, ignored)) return (root / name).string();
  }
  throw Error(ExitCode::data, name + ", which " + what_it_does + ", is not here",
              "run bin/prepare_data in the tree it was built in");
}

} // namespace gpt2
