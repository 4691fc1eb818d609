// The program: options -> backend -> session -> trainer.run(). Plain C++ on top of the engine's library: no device
// code.
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/backend.h"       // defines: open_backend, cuda_version
#include "engine/options/parse_options.h" // defines: parse_options
#include "engine/options/run_plan.h"      // defines: backend_options
#include "engine/ranks/rank_group.h"      // defines: RankGroup
#include "engine/ranks/spawn.h"           // defines: run_ranks (--gpus)
#include "engine/run/evaluation.h"        // defines: evaluate_only
#include "engine/run/rank_start.h"        // defines: join_ranks, run_as_rank
#include "engine/run/resume_point.h"      // defines: find_resume_point (--resume)
#include "engine/run/run_settings.h"      // defines: resolve_settings
#include "engine/run/session.h"           // defines: Session
#include "engine/run/trainer.h"           // defines: Trainer
#include "engine/system/address_space.h"  // defines: refuse_little_address_space
#include "engine/system/files.h"          // defines: find_in_tree
#include "engine/system/process.h"        // defines: StopSignal
#include "engine/system/program.h"        // defines: run_program, Error, ExitCode
#include "engine/system/terminal.h"       // defines: is_terminal, wants_color

namespace {

using namespace gpt2;

constexpr StopMessages kStopMessages = {
    .at_once = "stopped before the first step: nothing to save\n",
    .later = "stopping; Ctrl-C again to quit now\n",
    .again = "stopped at once: steps since the last checkpoint are lost, the checkpoint itself is intact\n",
};

ExitCode print(const std::string& text) {
  std::cout << text;
  return ExitCode::done;
}

ExitCode evaluate(const CommandLine& command_line, RankGroup& group, Console& console) {
  const RunSettings settings = resolve_settings(command_line, find_resume_point(command_line, group));
  const OpenBackend open = open_backend(backend_options(settings.options, group));
  return evaluate_only(settings, open.device, *open.backend, group, console);
}

ExitCode train_or_evaluate(const CommandLine& command_line, RankGroup& group, Console& console) {
  if (command_line.options.eval_only)
    return retry_if_removed(command_line.options.resume, [&] { return evaluate(command_line, group, console); });
  const RunSettings settings = resolve_settings(command_line, find_resume_point(command_line, group));
  const OpenBackend open = open_backend(backend_options(settings.options, group));
  Session session(settings, open.device, *open.backend, group, console);
  return run_as_rank(group,
                     [&] { return Trainer(session).run(); }); // announces a failure before the model is destroyed
}

// bin/plan and bin/manual take the trainer's own arguments.
[[noreturn]] void become(const std::string& tool, char* const* argv) {
  const std::string program = find_in_tree(tool);
  if (!program.empty()) ::execv(program.c_str(), argv);
  throw Error(ExitCode::usage, "cannot start " + tool, "build it with make");
}

[[noreturn]] void list_checkpoints(std::vector<std::string> folders) {
  std::string program = "ckpt", command = "runs";
  std::vector<char*> words{program.data(), command.data()};
  for (std::string& folder : folders) words.push_back(folder.data());
  words.push_back(nullptr);
  become("bin/ckpt", words.data());
}

ExitCode run(int argc, char** argv, const StopSignal& stop) {
  const auto command_line = parse_options(argc, argv, "train_gpt2_fp8 " GPT2_VERSION ", " + cuda_version());
  if (!command_line) return ExitCode::done;
  const Options& options = command_line->options;
  if (options.print_config) return print(to_explained_toml(options));
  if (options.list_checkpoints) list_checkpoints(checkpoint_dirs(options));
  if (!command_line->manual.empty()) become("bin/manual", argv);
  if (options.plan) become("bin/plan", argv);
  if (const int children = ranks_to_start(options, process_environment()))
    return static_cast<ExitCode>(run_ranks(children, argv)); // the worst exit code of the ranks

  const std::unique_ptr<RankGroup> group = join_ranks(options, process_environment());
  if (!group->alone()) stop.defer(); // all ranks stop after the same step
  std::ostream nowhere(nullptr);
  const bool terminal = is_terminal() && !behind_launcher(process_environment());
  Console console(group->leads() ? std::cout : nowhere, group->leads() && terminal, terminal && wants_color());
  return run_as_rank(
      *group, [&] { return train_or_evaluate(*command_line, *group, console); }, &stop);
}

} // namespace

int main(int argc, char** argv) {
  const StopSignal stop(kStopMessages); // first: a signal is handled from here on
  return run_program([&] { return run(argc, argv, stop); });
}

// The loader calls it before any library initializes: OpenBLAS would hang under a small ulimit -v.
[[gnu::used, gnu::section(".preinit_array")]] static auto* before_libraries = gpt2::refuse_little_address_space;
