// Log folders of runs that never completed a step.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

struct DeadRun {
  std::string logs;                     // folder
  std::vector<std::string> checkpoints; // its folders below `checkpoint_dirs`, without a checkpoint; may be empty
};

// The runs of `log_dir` that have logged no step, have no checkpoint and no writer, in order of their names. A folder
// with files that no run and no tool writes is not one of them.
std::vector<DeadRun> find_dead_runs(const std::string& log_dir, const std::vector<std::string>& checkpoint_dirs);

// Removes the folders of a dead run. Throws Error(usage) if a run has started to write there meanwhile, Error(disk).
void remove_dead_run(const DeadRun& run);

} // namespace gpt2
