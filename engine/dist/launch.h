// How this process was started: by itself, or by a launcher as one rank of a job. Only words in the environment are
// read; connecting the ranks is the communicator's affair.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace gpt2 {

using Environment = std::function<const char*(const char* name)>; // as getenv: null where there is no such variable
Environment process_environment();

struct Launch {
  std::string program; // "mpirun", "mpiexec", "torchrun" or "srun"
  int rank = 0, ranks = 1;
  std::optional<int> local_rank; // on this node, where the launcher tells
};

// The first launcher that left both a size and a rank decides, innermost first: OpenMPI, PMI, torchrun, Slurm. So
// mpirun -np 1 inside an allocation of eight tasks is one rank. A size alone proves nothing: sbatch exports
// SLURM_NTASKS to plain commands, and WORLD_SIZE is a common name. Throws Error(communication) for numbers that make no
// sense.
std::optional<Launch> find_launch(const Environment& environment);

} // namespace gpt2
