#include "engine/hdf5/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace gpt2 {
namespace {

constexpr size_t kFewestThreads = 4; // on few cores, some wait for the disk while others hash
constexpr size_t kMostThreads = 8;   // each reads and hashes several GB/s: memory or disk bound

} // namespace

void parallel_for(size_t count, const std::function<void(size_t)>& job) {
  std::atomic<size_t> next = 0;
  std::mutex mutex; // guards failed, error
  size_t failed = SIZE_MAX;
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t number = next++; number < count; number = next++) {
      try {
        job(number);
      } catch (...) {
        next = count; // every lower number has started
        const std::lock_guard lock(mutex);
        if (number >= failed) continue;
        failed = number;
        error = std::current_exception();
      }
    }
  };
  {
    // static: each call of hardware_concurrency() reads a file below /sys.
    static const auto most = std::clamp<size_t>(std::thread::hardware_concurrency(), kFewestThreads, kMostThreads);
    std::vector<std::jthread> helpers;
    const auto threads = std::min(count, most);
    try {
      while (helpers.size() + 1 < threads) helpers.emplace_back(work);
    } catch (const std::system_error&) { // no more threads available: continue with fewer
    }
    work();
  }
  if (error) std::rethrow_exception(error);
}

} // namespace gpt2
