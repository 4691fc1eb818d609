// Work that comes in numbered jobs, on several threads. Not OpenMP: a process that forks after using GNU's hangs in the
// child, and ranks are forked in tests.
#pragma once

#include <cstddef>
#include <functional>

namespace gpt2 {

// job(0) ... job(count - 1), handed out in this order. Where some throw an Error, that of the lowest number is thrown.
void run_jobs(size_t count, const std::function<void(size_t)>& job);

} // namespace gpt2
