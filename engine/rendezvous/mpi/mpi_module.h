// What the optional module offers to the library that opens it.
#pragma once

namespace gpt2 {

constexpr const char* kMpiModule = "libgpt2_mpi.so";
constexpr const char* kMpiBroadcastName = "gpt2_mpi_broadcast";

// MPI_Init, the `size` bytes of rank 0 to all, MPI_Finalize. Null, or what went wrong.
using MpiBroadcast = const char* (*)(char* bytes, int size, int ranks);

} // namespace gpt2
