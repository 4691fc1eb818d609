#include "engine/hdf5/parallel_jobs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace gpt2 {
namespace {

constexpr size_t kFewestThreads = 4; // where there are few cores, some wait for the disk while others work
constexpr size_t kMostThreads = 8;   // one reads and hashes several GB/s: more would only wait for memory or the disk

class Jobs {
 public:
  Jobs(size_t count, const std::function<void(size_t)>& job) : count_(count), job_(job) {}

  void work() {
    for (size_t number = next_++; number < count_; number = next_++) {
      try {
        job_(number);
      } catch (...) {
        next_ = count_; // every lower number has been handed out
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

void run_jobs(size_t count, const std::function<void(size_t)>& job) {
  Jobs jobs(count, job);
  {
    // Asked once: each call of hardware_concurrency() reads a file below /sys.
    static const auto most = std::clamp<size_t>(std::thread::hardware_concurrency(), kFewestThreads, kMostThreads);
    std::vector<std::jthread> helpers;
    const auto threads = std::min(count, most);
    try {
      while (helpers.size() + 1 < threads) helpers.emplace_back([&] { jobs.work(); });
    } catch (const std::system_error&) { // no more threads for this process: those there are do it
    }
    jobs.work();
  }
  jobs.throw_first_error();
}

} // namespace gpt2
