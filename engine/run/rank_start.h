// How a process becomes one rank of a run, how the ranks of a run end together, and how to resume it on as many ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/options/options.h"
#include "engine/ranks/rank_group.h"
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

// "./train_gpt2_fp8 --resume checkpoints_fp8/RUN", with the launcher and its number of ranks; "--max_lr 3e-4" at the
// end to resume at that rate.
std::string resume_command(const std::string& checkpoint, const Options& options = {},
                           std::optional<double> max_lr = std::nullopt);

} // namespace gpt2
