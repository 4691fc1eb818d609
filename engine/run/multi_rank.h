// What the ranks of a run settle among themselves beside the steps: that they run the same, what rank 0 has chosen, how
// FP8 fares on all of them, and which of them is slow. With one process all of it answers at once.
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

// How this process was started, and the ranks that were started with it.
std::unique_ptr<RankGroup> join_ranks(const Options& options, const Environment& environment);

// mpirun gives its ranks a terminal of their own and copies what they write to wherever its own output goes.
bool behind_launcher(const Environment& environment);

// --gpus: how many ranks to start from here; 0: none, for this process is one of them or there is no such flag.
int ranks_to_start(const Options& options, const Environment& environment);

// Runs the work of one rank. The other ranks hear of its failure and end, and this process ends without another step;
// of an error that all ranks have alike one speaks (rank 0 where they agreed on it, else the first that failed), and
// each keeps its code. `stop`, where there is nothing to save yet: a rank that was
// asked to stop does not take the end of the others, who were asked too, for a failure.
ExitCode as_one_of(RankGroup& group, const std::function<ExitCode()>& work, const StopSignal* stop = nullptr);

// What rank 0's work answers, texts without zero bytes, on every rank; an Error of it is thrown by all.
std::vector<std::string> from_rank_0(RankGroup& group, const std::function<std::vector<std::string>()>& work);

// Something that must be the same on every rank: {"max_lr", "0.0006"}.
using Fact = std::pair<std::string, std::string>;
std::vector<Fact> facts_of(const Options& options, const Backend& backend, const Dataset& train,
                           const Dataset* validation);
// Throws AgreedError with both sides of the first difference.
void check_agreement(RankGroup& group, const std::vector<Fact>& mine);

// The options of one of so many ranks: a micro-batch of a checkpoint's run that they cannot divide their share by
// becomes the largest that they can.
Options fitted_to_ranks(const RunSettings& settings, int ranks);

// Rank 0's plan, after all have shown that they would choose from the same, fitted to them.
RunPlan agree_on_plan(const RunSettings& settings, const GPT2Config& config, Precision precision, const Dataset& train,
                      const Dataset* validation, Backend& backend, RankGroup& group);

// Statistics over all ranks, from each rank's own. Amaxes and scales are the same already.
std::vector<Fp8TensorStats> over_ranks(RankGroup& group, std::vector<Fp8TensorStats> mine);

// Names the rank that all others wait for.
class StragglerWatch {
 public:
  // Every rank calls it with its own seconds of a step; rank 0 gets a line once the same rank has been slow kPatience
  // times in a row, and again only when another one is.
  std::optional<std::string> look(RankGroup& group, double own_seconds);

 private:
  static constexpr double kSlow = 1.2; // times the median
  static constexpr int kPatience = 3;
  int slowest_ = -1, times_ = 0, told_ = -1;
};

} // namespace gpt2
