#include "engine/rendezvous/mpi_broadcast.h"

#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/rendezvous/mpi/mpi_module.h"

namespace gpt2 {
namespace {

constexpr int kTextLimit = 1 << 16;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ExitCode::communication, "rank 0 cannot be found over MPI: " + what,
              "export MASTER_ADDR=HOST to all ranks, or give --ranks N --rank R --master HOST");
}

std::string beside_this_library(const char* name) {
  Dl_info library = {};
  if (::dladdr(reinterpret_cast<const void*>(&mpi_broadcast), &library) == 0 || !library.dli_fname) return name;
  const std::string path = library.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + name;
}

} // namespace

std::string mpi_broadcast(const std::string& text, int ranks) {
  // Never closed: MPI leaves threads and handlers behind.
  void* const module = ::dlopen(beside_this_library(kMpiModule).c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!module) refuse(std::string("the module ") + kMpiModule + " is missing (it is built if MPI is installed)");
  const auto broadcast = reinterpret_cast<MpiBroadcast>(::dlsym(module, kMpiBroadcastName));
  if (!broadcast) refuse(std::string(kMpiModule) + " is of another version");

  std::vector<char> buffer(kTextLimit);
  std::strncpy(buffer.data(), text.c_str(), buffer.size() - 1);
  if (const char* const problem = broadcast(buffer.data(), kTextLimit, ranks)) refuse(problem);
  return buffer.data();
}

} // namespace gpt2
