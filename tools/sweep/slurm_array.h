// A sweep as a Slurm array: one task a run, each as tools/submit_fp8.sh does it.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

struct SlurmArray {
  std::string name;                 // of the job
  std::string folder;               // of the study: logs go there
  std::vector<std::string> command; // what a task runs, before the number of its run
  std::vector<int> numbers;         // of the runs, from 1
};

// A script for sbatch: two minutes before the time limit a task saves and goes back into the queue.
std::string slurm_script(const SlurmArray& array);

} // namespace gpt2
