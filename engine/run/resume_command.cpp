#include "engine/run/resume_command.h"

#include <algorithm>
#include <utility>

#include "engine/base/formatted.h"
#include "engine/base/shell_quote.h"
#include "engine/rendezvous/launcher.h"
#include "engine/system/process.h"

namespace gpt2 {
namespace {

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
  return {"torchrun --no-python" + (nodes > 1 ? " --nnodes=" + std::to_string(nodes) : "") +
              " --nproc_per_node=" + std::to_string(on_node) + " ",
          ""};
}

} // namespace

std::string resume_command(const std::string& checkpoint, const Options& options, std::optional<double> max_lr) {
  const auto launch = options.ranks > 0 ? std::optional(explicit_launch(options.ranks, options.rank, options.master))
                                        : find_launch(process_environment());
  const auto [before, after] = launch ? launch_words(*launch) : std::pair<std::string, std::string>();
  return before + shell_quote(program_as_called()) + " --resume " + shell_quote(checkpoint) +
         (max_lr ? " --max_lr " + formatted("%.3g", *max_lr) : "") + after +
         (launch && launch->ranks > 1 && options.share_gpu ? " --share_gpu" : "");
}

} // namespace gpt2
