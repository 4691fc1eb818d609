// What ranks exchange besides the training step: whether they run the same program, options and data, rank 0's choices,
// FP8 statistics and stragglers. In a single process every function returns at once.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/data/loader.h"
#include "engine/model/fp8_recipe.h"
#include "engine/options/options.h"
#include "engine/options/run_plan.h"
#include "engine/ranks/rank_group.h"
#include "engine/run/run_settings.h"

namespace gpt2 {

// A value that must be equal on every rank: {"max_lr", "0.0006"}.
using Fact = std::pair<std::string, std::string>;
// Throws AgreedError with both values of the first difference.
void check_agreement(RankGroup& group, const std::vector<Fact>& mine);

// The options for `ranks` ranks: a checkpoint's micro-batch that does not divide the sequences per rank becomes the
// largest smaller divisor.
Options fitted_to_ranks(const RunSettings& settings, int ranks);

// Rank 0's plan, fitted to the ranks, after check_agreement().
RunPlan agree_on_plan(const RunSettings& settings, const GPT2Config& config, Precision precision, const Dataset& train,
                      const Dataset* validation, Backend& backend, RankGroup& group);

// Saturated and flushed shares averaged over ranks; amaxes and scales are equal already.
std::vector<Fp8TensorStats> average_over_ranks(RankGroup& group, std::vector<Fp8TensorStats> mine);

// Names the rank that all others wait for.
class StragglerWatch {
 public:
  // Collective: each rank passes its own seconds of a step. Rank 0 gets a line when the same rank was slow kPatience
  // times in a row; each rank is reported once until another is slow.
  std::optional<std::string> check(RankGroup& group, double own_seconds);

 private:
  static constexpr double kSlow = 1.2; // times the median
  static constexpr int kPatience = 3;
  int slowest_ = -1, times_ = 0, reported_ = -1;
};

} // namespace gpt2
