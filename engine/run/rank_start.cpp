#include "engine/run/rank_start.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <utility>

#include "engine/backend/backend.h"
#include "engine/base/formatted.h"
#include "engine/base/parse_number.h"
#include "engine/base/shell_quote.h"
#include "engine/base/split.h"
#include "engine/options/run_plan.h"
#include "engine/ranks/agreement.h"
#include "engine/system/program.h"

namespace gpt2 {
namespace {

std::optional<Launch> launch_of(const Options& options, const Environment& environment) {
  return options.ranks > 0 ? explicit_launch(options.ranks, options.rank, options.master) : find_launch(environment);
}

// The end of another rank, if that caused `error`. NCCL may notice it before the group does.
std::optional<Error> lost_rank(const RankGroup& group, const Error& error) {
  return attempt([&] { group.check_within(std::chrono::seconds(error.code() == ExitCode::communication ? 1 : 0)); });
}

// Destructors may wait for a device that waits for other ranks, and a launcher kills the rest a second after the first
// death: print the error first, then exit without cleaning up.
[[noreturn]] void leave_at_once(const Error& error) {
  print_error(error);
  std::cout << std::flush;
  std::_Exit(static_cast<int>(error.code()));
}

// How to launch the same number of ranks: words before the program and after its flags.
std::pair<std::string, std::string> launch_words(const Launch& launch) {
  const std::string ranks = std::to_string(launch.ranks);
  if (launch.ranks == 1) return {};
  if (launch.program == "--gpus") return {"", " --gpus " + ranks};
  if (launch.program == "--ranks")
    return {"", " --ranks " + ranks + " --rank RANK --master " + shell_quote(launch.master)};
  if (launch.program == "srun") return {"srun --ntasks=" + ranks + " ", ""};
  if (launch.program != "torchrun") return {launch.program + " -np " + ranks + " ", ""};
  const int on_node = launch.local_ranks.value_or(launch.ranks), nodes = launch.ranks / std::max(1, on_node);
  return {
      concat("torchrun --no-python", nodes > 1 ? concat(" --nnodes=", nodes) : "", " --nproc_per_node=", on_node, " "),
      ""};
}

} // namespace

std::unique_ptr<RankGroup> join_ranks(const Options& options, const Environment& environment) {
  const std::optional<Launch> launch = launch_of(options, environment);
  if (!launch || launch->ranks == 1) return std::make_unique<RankGroup>();
  Launch of_options = *launch;
  if (!options.master.empty()) of_options.master = options.master;
  of_options.shared_folder = checkpoint_dirs(options).front();
  const std::chrono::seconds limit(options.nccl_timeout);
  return RankGroup::join(of_options, {.deadline = limit, .stall = limit});
}

bool behind_launcher(const Environment& environment) {
  const std::optional<Launch> launch = find_launch(environment);
  return launch && launch->program != "--gpus";
}

int ranks_to_start(const Options& options, const Environment& environment) {
  const std::optional<Launch> launch = find_launch(environment);
  if (options.gpus.empty() || (launch && (launch->ranks > 1 || launch->program == "--gpus"))) return 0;
  if (options.gpus == "all") {
    const int gpus = gpu_count();
    if (gpus == 0)
      throw Error(ExitCode::device, "--gpus all: this machine has no GPU",
                  "use --gpus N for N ranks on the CPU, or leave it out");
    return gpus;
  }
  if (const int count = parse_number<int>(options.gpus).value_or(0); count >= 1) return count;
  throw Error(ExitCode::usage, "--gpus must be a number from 1, or all, not " + options.gpus, "as in --gpus 8");
}

ExitCode run_as_rank(RankGroup& group, const std::function<ExitCode()>& work, const StopSignal* stop) {
  try {
    return work();
  } catch (const AgreedError& error) {
    if (group.alone()) throw;
    // Printed now: destructors in the caller may take longer than a launcher waits before it kills the rank.
    if (group.leads()) print_error(error);
    return error.code();
  } catch (const Error& error) {
    if (group.alone()) throw;
    if (const auto lost = lost_rank(group, error)) {
      if (stop && stop->requested()) std::_Exit(static_cast<int>(ExitCode::stopped_early));
      // The other rank printed the same error: keep its exit code.
      if (error.code() != ExitCode::communication && std::string_view(lost->what()).ends_with(error.what()))
        std::_Exit(static_cast<int>(error.code()));
      leave_at_once(*lost);
    }
    group.announce_failure(error.what());
    leave_at_once(error);
  } catch (const std::exception& error) {
    group.announce_failure(error.what());
    throw;
  }
}

std::vector<std::string> from_rank_0(RankGroup& group, const std::function<std::vector<std::string>()>& work) {
  std::vector<std::string> texts;
  const std::optional<Error> mine = attempt([&] {
    if (!group.leads()) return;
    const auto busy = group.busy(); // `work` may verify checkpoints
    texts = work();
  });
  if (const std::optional<Error> error = first_error(group, mine)) throw_agreed(group, *error);
  if (group.alone()) return texts;
  std::string sent;
  for (const std::string& text : texts) sent += text + '\0';
  texts = split(group.broadcast(sent), '\0');
  texts.pop_back(); // after the last zero byte
  return texts;
}

std::string resume_command(const std::string& checkpoint, const Options& options, std::optional<double> max_lr) {
  const std::optional<Launch> launch = launch_of(options, process_environment());
  const auto [before, after] = launch ? launch_words(*launch) : std::pair<std::string, std::string>();
  return before + shell_quote(program_as_called()) + " --resume " + shell_quote(checkpoint) +
         (max_lr ? " --max_lr " + formatted("%.3g", *max_lr) : "") + after +
         (launch && launch->ranks > 1 && options.share_gpu ? " --share_gpu" : "");
}

} // namespace gpt2
