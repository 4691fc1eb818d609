#include "engine/system/address_space.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/system/process.h"

namespace gpt2 {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kBuffer = 128 * kMiB;      // of OpenBLAS 0.3.21, on x86-64
constexpr int64_t kThread = (8 + 64) * kMiB; // its stack and its malloc arena
constexpr int64_t kRest = 64 * kMiB;

// No allocation, no stdio streams, no environ: it runs before the C library has set them up.
int64_t bytes_mapped() {
  char text[128] = "";
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  const ssize_t size = file < 0 ? 0 : ::read(file, text, sizeof text - 1);
  if (file >= 0) ::close(file);
  return size <= 0 ? 0 : std::atoll(text) * ::sysconf(_SC_PAGESIZE); // the first number: pages
}

int processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// True, and the message in `what`, if `bytes` more than now exceed the limit.
bool too_little(int threads, int64_t bytes, char (&what)[256]) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const int64_t needed = bytes_mapped() + bytes;
  if (static_cast<int64_t>(limit.rlim_cur / kMiB) >= needed / kMiB) return false;
  std::snprintf(what, sizeof what, "%lld MiB of address space are too few: with %d %s this program needs %lld MiB",
                static_cast<long long>(limit.rlim_cur / kMiB), threads, threads == 1 ? "thread" : "threads",
                static_cast<long long>(needed / kMiB));
  return true;
}

constexpr const char* kHint = "raise the limit (ulimit -v unlimited), or set OMP_NUM_THREADS to fewer threads";

} // namespace

void refuse_little_address_space(int, char**, char** environment) {
  int threads = processors();
  for (; *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, "OMP_NUM_THREADS=", 16) == 0)
      threads = std::clamp(std::atoi(*environment + 16), 1, threads);
  }
  char what[256], line[400];
  if (!too_little(threads, (threads + 1) * kBuffer + threads * kThread + kRest, what)) return;
  const int size = std::snprintf(line, sizeof line, "error: %s (%s)\n", what, kHint);
  exit_with_line(ExitCode::device, {line, static_cast<size_t>(size)});
}

void require_address_space(int threads) {
  char what[256];
  const int more = threads - processors();
  if (more > 0 && too_little(threads, more * (kBuffer + kThread), what)) throw Error(ExitCode::device, what, kHint);
}

} // namespace gpt2
