#include <hdf5.h>

namespace gpt2 {
namespace {

// libhdf5's exit handler crashes if malloc has failed before. Every file is closed by then, so the handler is not
// needed. H5dont_atexit() must be the first call of libhdf5.
__attribute__((constructor)) void disable_exit_cleanup() { H5dont_atexit(); }

} // namespace
} // namespace gpt2
