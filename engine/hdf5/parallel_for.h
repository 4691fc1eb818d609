// Not OpenMP: a process that forks after using libgomp hangs in the child, and tests fork ranks.
#pragma once

#include <cstddef>
#include <functional>

namespace gpt2 {

// Calls job(0) ... job(count - 1) on several threads, starting them in this order. If some throw, rethrows the
// exception of the lowest number.
void parallel_for(size_t count, const std::function<void(size_t)>& job);

} // namespace gpt2
