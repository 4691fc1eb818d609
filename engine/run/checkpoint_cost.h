// The disk space that the checkpoints of a run take, counted as pruning leaves them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "engine/options/run_plan.h"

namespace gpt2 {

// ---- counts of a run, which may have 10^12 steps ----
inline int64_t multiples_in(int64_t after, int64_t upto, int64_t of) { return of > 0 ? upto / of - after / of : 0; }
inline int64_t saturated_product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}

struct CheckpointCost {
  int64_t bytes_each = 0;
  int64_t kept = 0; // on disk at the end of the run
  int64_t most = 0; // on disk at any time: one more until an old one is removed
  int64_t bytes() const { return saturated_product(most, bytes_each); }
};

// Of the steps after `done`. `evaluates`: the run has a best checkpoint too.
CheckpointCost checkpoint_cost(const RunPlan& plan, int64_t done, bool evaluates);

// One line if the disk has less than the run needs; "" otherwise.
std::string checkpoint_space_warning(const CheckpointCost& cost, const std::string& folder, int64_t free_bytes);

} // namespace gpt2
