// Broadcasts a text from rank 0 over MPI, for a job of mpirun on several nodes. A module next to this library
// (engine/rendezvous/mpi) links libmpi and is opened only here: no program links libmpi.
#pragma once

#include <string>

namespace gpt2 {

// Collective, once per process; `text` is used on rank 0. Throws Error(communication) without the module or if MPI
// fails.
std::string mpi_broadcast(const std::string& text, int ranks);

} // namespace gpt2
