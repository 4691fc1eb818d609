// Interface of the optional module libgpt2_mpi.so.
#pragma once

namespace gpt2 {

constexpr const char* kMpiModule = "libgpt2_mpi.so";
constexpr const char* kMpiBroadcastName = "gpt2_mpi_broadcast";

// MPI_Init, MPI_Bcast of `size` bytes from rank 0, MPI_Finalize. Returns null, or the error.
using MpiBroadcast = const char* (*)(char* bytes, int size, int ranks);

} // namespace gpt2
