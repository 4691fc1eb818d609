// A full disk without filling one: while it lives, no file of this process may grow beyond `bytes` (writes fail with
// EFBIG). It holds for root as well, whom permissions do not stop.
#pragma once

#include <signal.h>
#include <sys/resource.h>

namespace gpt2 {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    ::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  sighandler_t old_handler_;
  rlimit old_limit_{};
};

} // namespace gpt2
