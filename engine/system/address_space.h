// Checks of ulimit -v for OpenBLAS, which maps 128 MiB per thread when it is loaded, before main, and once more at its
// first GEMM. Under a limit that forbids this it retries forever.
#pragma once

namespace gpt2 {

// Exits with one line and ExitCode::device if the limit is too low for one thread per processor (OMP_NUM_THREADS:
// fewer). For a program's .preinit_array, which the loader runs before any library's constructors.
void refuse_little_address_space(int argc, char** argv, char** environment);

// For more threads than processors: throws Error(device) if the limit is too low for the additional ones.
void require_address_space(int threads);

} // namespace gpt2
