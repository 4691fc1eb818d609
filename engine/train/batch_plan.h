// How the sequences of one optimizer step are cut: target = ranks * batch_size * accumulation, exactly.
#pragma once

namespace gpt2 {

struct BatchPlan {
  int batch_size;   // sequences per micro-batch on each rank
  int accumulation; // micro-batches per step on each rank
};

// Throws Error(usage) that proposes the nearest values that divide.
BatchPlan plan_batches(int target_batch_size, int batch_size, int ranks);

// Sequences per step on each rank. Throws Error(usage) if the ranks cannot share the target evenly.
int target_per_rank(int target_batch_size, int ranks);

} // namespace gpt2
