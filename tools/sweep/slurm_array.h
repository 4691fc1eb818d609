// A sweep as a Slurm job array: one task per run, in the manner of tools/submit_fp8.sh.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

struct SlurmArray {
  std::string name;                 // of the Slurm job
  std::string folder;               // of the sweep; receives the job logs
  std::vector<std::string> command; // of a task, without the number of its run
  std::vector<int> numbers;         // of the runs, counted from 1
};

// Returns a script for sbatch. Two minutes before the time limit a task saves and requeues itself.
std::string slurm_script(const SlurmArray& array);

} // namespace gpt2
