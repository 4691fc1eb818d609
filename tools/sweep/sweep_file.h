// A sweep as a TOML file: options of all runs, a [grid] of lists, [[run]]s with options of their own.
#pragma once

#include <string>
#include <vector>

#include "tools/sweep/study.h"

namespace gpt2 {

struct Sweep {
  std::string name;
  std::vector<StudyRun> runs; // every [[run]] at every point of the grid; the last key of the grid changes fastest
};

// Throws Error(usage) that names the file and the line.
Sweep read_sweep(const std::string& path);

} // namespace gpt2
