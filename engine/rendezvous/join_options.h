// Time limits of a job with several ranks.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace gpt2 {

struct JoinOptions {
  std::chrono::milliseconds deadline{120000}; // for all ranks to join
  std::chrono::milliseconds stall{120000};    // --nccl_timeout: longest wait of the others for one rank
  std::chrono::milliseconds grace{3000};      // after a failure, for the main thread to end by itself
  // Called after the grace period. Null: print the line to stderr and end with exit code 7. Tests with several ranks in
  // one process replace it.
  std::function<void(const std::string& line)> end_process = nullptr;
};

} // namespace gpt2
