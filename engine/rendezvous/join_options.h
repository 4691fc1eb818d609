// How long ranks wait for each other.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace gpt2 {

struct JoinOptions {
  std::chrono::milliseconds deadline{120000}; // for all ranks to appear
  std::chrono::milliseconds stall{120000};    // --nccl_timeout: how long a rank may keep the others waiting
  std::chrono::milliseconds grace{3000};      // after a failure, for the main thread to leave by itself
  // What happens then. Null: the line goes to stderr and the process ends with exit code 7. Tests that play several
  // ranks in one process put something else here.
  std::function<void(const std::string& line)> end_process = nullptr;
};

} // namespace gpt2
