#include "engine/train/batch_plan.h"

#include <algorithm>
#include <string>

#include "engine/base/divisors.h"
#include "engine/base/error.h"

namespace gpt2 {
namespace {

// The multiples of `unit` around `number`, as "480 or 528".
std::string nearest_multiples(int number, int unit) {
  const int below = number / unit * unit;
  const std::string above = std::to_string(below + unit);
  return below > 0 ? std::to_string(below) + " or " + above : above;
}

} // namespace

int target_per_rank(int target_batch_size, int ranks) {
  if (target_batch_size % ranks != 0) {
    throw Error(ExitCode::usage,
                std::to_string(ranks) + " ranks cannot share --target_batch_size " + std::to_string(target_batch_size) +
                    " sequences evenly",
                "use --target_batch_size " + nearest_multiples(target_batch_size, ranks));
  }
  return target_batch_size / ranks;
}

BatchPlan plan_batches(int target_batch_size, int batch_size, int ranks) {
  const int per_rank = target_per_rank(target_batch_size, ranks);
  if (per_rank % batch_size == 0) return {batch_size, per_rank / batch_size};

  std::string sizes = std::to_string(largest_divisor_at_most(per_rank, batch_size));
  for (int above = batch_size + 1; above <= per_rank; ++above) {
    if (per_rank % above == 0) {
      sizes += " or " + std::to_string(above);
      break;
    }
  }
  throw Error(ExitCode::usage,
              "--target_batch_size " + std::to_string(target_batch_size) + " is not a multiple of --batch_size " +
                  std::to_string(batch_size) + (ranks > 1 ? " on " + std::to_string(ranks) + " ranks" : ""),
              "use --batch_size " + sizes + ", or --target_batch_size " +
                  nearest_multiples(target_batch_size, batch_size * ranks));
}

} // namespace gpt2
