// A sweep file in TOML: options of all runs, a [grid] of lists, [[run]]s with additional options.
#pragma once

#include <string>
#include <vector>

#include "tools/sweep/run_set.h"

namespace gpt2 {

struct Sweep {
  std::string name;
  std::vector<RunSpec> runs; // [[run]]s times grid points; the last grid key changes fastest
};

// Throws Error(usage) with file and line.
Sweep read_sweep(const std::string& path);

} // namespace gpt2
