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

class Jobs {
 public:
  Jobs(size_t count, const std::function<void(size_t)>& job) : count_(count), job_(job) {}

  void work() {
    for (size_t number = next_++; number < count_; number = next_++) {
      try {
        job_(number);
      } catch (...) {
        next_ = count_; // every lower number has started
        const std::lock_guard lock(mutex_);
        if (number >= failed_) continue;
        failed_ = number;
        error_ = std::current_exception();
      }
    }
  }
  void throw_first_error() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const size_t count_;
  const std::function<void(size_t)>& job_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  size_t failed_ = SIZE_MAX;
  std::exception_ptr error_;
};

} // namespace

void parallel_for(size_t count, const std::function<void(size_t)>& job) {
  Jobs jobs(count, job);
  {
    // static: each call of hardware_concurrency() reads a file below /sys.
    static const auto most = std::clamp<size_t>(std::thread::hardware_concurrency(), kFewestThreads, kMostThreads);
    std::vector<std::jthread> helpers;
    const auto threads = std::min(count, most);
    try {
      while (helpers.size() + 1 < threads) helpers.emplace_back([&] { jobs.work(); });
    } catch (const std::system_error&) { // no more threads available: continue with fewer
    }
    jobs.work();
  }
  jobs.throw_first_error();
}

} // namespace gpt2
