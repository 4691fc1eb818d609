// How this process was started: by itself, or by a launcher as one rank of a job. Only words in the environment and on
// the command line are read; the ranks find each other in rendezvous.h.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace gpt2 {

using Environment = std::function<const char*(const char* name)>; // as getenv: null where there is no such variable
Environment process_environment();

struct Launch {
  std::string program; // "--gpus", "mpirun", "mpiexec", "torchrun", "srun" or "--ranks"
  int rank = 0, ranks = 1;
  std::optional<int> local_rank = std::nullopt; // on this node, where the launcher tells
  std::optional<int> local_ranks = std::nullopt;
  std::string job = {}; // names the job, the same on all its ranks. Public: ports and file names derive from it
  // Where rank 0 is found: "host", "host:port", "file:PATH", "mpi:" (rank 0 says it over MPI), or empty: on this host.
  std::string master = {};
  int avoid_port = 0;             // held by the launcher: torchrun's MASTER_PORT
  std::string shared_folder = {}; // that all nodes see: --checkpoint_dir. Carries the secret where nothing else does
};

// By the launcher's count of local ranks, or because rank 0 is at a loopback address. The name of a host proves
// nothing: Debian resolves a host's own name to 127.0.1.1, and other nodes to its real address.
bool on_one_host(const Launch& launch);

// "host", "host:port", "[::1]:port", "::1". Port 0: none is given. Error(usage).
struct Endpoint {
  std::string host;
  int port;
};
Endpoint parse_master(const std::string& master);

// The first launcher that left both a size and a rank decides, innermost first: our own --gpus, OpenMPI, PMI, torchrun,
// Slurm. So mpirun -np 1 inside an allocation of eight tasks is one rank. A size alone proves nothing: sbatch exports
// SLURM_NTASKS to plain commands, and WORLD_SIZE is a common name. Slurm counts only under srun: a batch script has a
// SLURM_PROCID too, and is one process. Throws Error(communication) for numbers that make no sense.
std::optional<Launch> find_launch(const Environment& environment);

// --ranks N --rank R --master HOST[:PORT]|file:PATH, for processes that no launcher has started. Error(usage).
Launch explicit_launch(int ranks, int rank, const std::string& master);

// "node[003-007,9],x" -> "node003"; "gpu-[01-02]-rack3" -> "gpu-01-rack3".
std::string first_host(const std::string& slurm_node_list);

} // namespace gpt2
