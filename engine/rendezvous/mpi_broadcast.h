// One text from rank 0 to all over MPI, for a job that mpirun has spread over several nodes. MPI itself is in a module
// beside this library (engine/rendezvous/mpi), opened only here: no program of ours links libmpi.
#pragma once

#include <string>

namespace gpt2 {

// Every rank calls it, once; `text` counts on rank 0. Error(communication) where there is no module, or MPI fails.
std::string mpi_broadcast(const std::string& text, int ranks);

} // namespace gpt2
