// ulimit -v, and a library that does not bear it: OpenBLAS maps 128 MiB for each thread while it is loaded, before
// main, and one more at its first product; where a limit forbids that it asks again for ever.
#pragma once

namespace gpt2 {

// Ends the process with one line and ExitCode::device if there is no room for a thread on each processor (fewer:
// OMP_NUM_THREADS). For a program's .preinit_array: the loader calls what stands there before any library starts.
void refuse_little_address_space(int argc, char** argv, char** environment);

// For more threads than there are processors: throws Error(device) unless there is room for what they need beside that.
void require_address_space(int threads);

} // namespace gpt2
