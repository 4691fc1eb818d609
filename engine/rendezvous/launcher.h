// Detects the launcher of this process (none, or one that started it as a rank of a job) from the environment and the
// command line. rendezvous.h then connects the ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gpt2 {

using Environment = std::function<const char*(const char* name)>; // as getenv: null if unset
Environment process_environment();
std::string text_of(const Environment& environment, const char* variable); // empty if unset

struct Launch {
  std::string program; // "--gpus", "mpirun", "mpiexec", "torchrun", "srun" or "--ranks"
  int rank = 0, ranks = 1;
  std::optional<int> local_rank = std::nullopt; // on this node, if the launcher sets it
  std::optional<int> local_ranks = std::nullopt;
  std::string job = {}; // name of the job, equal on all ranks. Not secret: ports and file names derive from it
  // Address of rank 0: "host", "host:port", "file:PATH", "mpi:" (rank 0 broadcasts it by MPI), or empty: this host.
  std::string master = {};
  int avoid_port = 0;             // in use by the launcher: torchrun's MASTER_PORT
  std::string shared_folder = {}; // visible to all nodes: --checkpoint_dir. Carries the secret if there is no token
};

// True if the launcher counts all ranks as local, or rank 0 is at a loopback address. A host name is no evidence:
// Debian resolves a host's own name to 127.0.1.1, and other nodes resolve it to its real address.
bool on_one_host(const Launch& launch);

// Parses "host", "host:port", "[::1]:port", "::1". Port 0: not given. Throws Error(usage).
struct Endpoint {
  std::string host;
  int port;
};
Endpoint parse_master(const std::string& master);
std::optional<int> read_port(std::string_view text); // "4000": 1 to 65535

// The first launcher that sets both size and rank decides, innermost first: --gpus, OpenMPI, PMI, torchrun, Slurm. So
// mpirun -np 1 inside an allocation of eight tasks is one rank. A size alone does not count: sbatch exports
// SLURM_NTASKS to plain commands, and WORLD_SIZE is a common name. Slurm counts only under srun: a batch script has
// SLURM_PROCID too, and is one process. Throws Error(communication) for invalid numbers.
std::optional<Launch> find_launch(const Environment& environment);

// --ranks N --rank R --master HOST[:PORT]|file:PATH, for processes without a launcher. Throws Error(usage).
Launch explicit_launch(int ranks, int rank, const std::string& master);

// "node[003-007,9],x" -> "node003"; "gpu-[01-02]-rack3" -> "gpu-01-rack3".
std::string first_host(const std::string& slurm_node_list);

} // namespace gpt2
