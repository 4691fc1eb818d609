// libgpt2_mpi.so: the only code linked with MPI. Built if CMake finds MPI; opened by dlopen.
#include <mpi.h>

#include <type_traits>

#include "engine/rendezvous/mpi/mpi_module.h"

extern "C" const char* gpt2_mpi_broadcast(char* bytes, int size, int ranks) {
  int initialized = 0;
  if (MPI_Initialized(&initialized) == MPI_SUCCESS && initialized) return "MPI is already in use";
  if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) return "MPI_Init failed";
  const char* problem = nullptr;
  int found = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &found);
  if (found != ranks) {
    problem = "the module was built for another MPI than the one that started these processes";
  } else if (MPI_Bcast(bytes, size, MPI_CHAR, 0, MPI_COMM_WORLD) != MPI_SUCCESS) {
    problem = "MPI_Bcast failed";
  }
  MPI_Finalize();
  return problem;
}

static_assert(std::is_same_v<decltype(&gpt2_mpi_broadcast), gpt2::MpiBroadcast>);
