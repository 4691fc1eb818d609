// What ranks exchange besides the training step: whether they run the same program, options and data, rank 0's choices,
// FP8 statistics and stragglers. In a single process every function returns at once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/data/loader.h"
#include "engine/model/fp8_recipe.h"
#include "engine/options/options.h"
#include "engine/options/run_plan.h"
#include "engine/ranks/rank_group.h"
#include "engine/run/run_settings.h"
#include "engine/system/process.h"

namespace gpt2 {

// Finds how this process was launched and joins the other ranks.
std::unique_ptr<RankGroup> join_ranks(const Options& options, const Environment& environment);

// mpirun gives each rank a pseudo-terminal and copies its output to mpirun's own: not a terminal to draw on.
bool behind_launcher(const Environment& environment);

// --gpus: ranks to start from this process; 0: none, without the flag or if this process is one of those ranks.
int ranks_to_start(const Options& options, const Environment& environment);

// Runs the work of one rank. A failure is announced to the other ranks, which end too. An error that all ranks share is
// printed once (by rank 0 if they agreed on it, else by the first that failed); each rank keeps its exit code. With
// `stop`, used before there is anything to save, a rank that was asked to stop does not report the end of the others.
ExitCode run_as_rank(RankGroup& group, const std::function<ExitCode()>& work, const StopSignal* stop = nullptr);

// Runs `work` on rank 0 and returns its result on every rank; the texts hold no zero bytes. All ranks throw its Error.
std::vector<std::string> from_rank_0(RankGroup& group, const std::function<std::vector<std::string>()>& work);

// A value that must be equal on every rank: {"max_lr", "0.0006"}.
using Fact = std::pair<std::string, std::string>;
std::vector<Fact> facts_of(const Options& options, const Backend& backend, const Dataset& train,
                           const Dataset* validation);
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
