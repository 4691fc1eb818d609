// bin/compare: trains option sets over the same seeds, or takes finished runs; prints a table and writes a page.
#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {

struct CompareCommand {
  std::vector<std::string> runs, sets;
  std::string seeds = "1", dir = "runs/compare", log_dir = "runs", output, program;
  double margin = 0.01;
  bool list = false, json = false, overwrite = false;
  std::vector<std::string> flags; // after --: trainer flags of all sets
};

ExitCode compare_runs(const CompareCommand& command);

} // namespace gpt2
