// The program: options -> backend -> session -> trainer.run(). No device code: plain C++ on top of the engine's
// library.
#include <iostream>
#include <memory>
#include <string>

#include "engine/backend/backend.h"      // defines: open_backend, cuda_version
#include "engine/dry_run/dry_run.h"      // defines: plan_run, plan_table (--plan)
#include "engine/logging/terminal.h"     // defines: is_terminal, wants_colour
#include "engine/options/options.h"      // defines: parse_options
#include "engine/options/run_plan.h"     // defines: backend_options
#include "engine/ranks/rank_group.h"     // defines: RankGroup
#include "engine/ranks/spawn.h"          // defines: run_ranks (--gpus)
#include "engine/run/evaluation.h"       // defines: evaluate_only
#include "engine/run/multi_rank.h"       // defines: join_ranks, as_one_of
#include "engine/run/resume_point.h"     // defines: find_resume_point (--resume), describe_checkpoints
#include "engine/run/run_settings.h"     // defines: settle
#include "engine/run/session.h"          // defines: Session
#include "engine/run/trainer.h"          // defines: Trainer
#include "engine/system/address_space.h" // defines: refuse_little_address_space
#include "engine/system/process.h"       // defines: StopSignal
#include "engine/system/program.h"       // defines: run_program, Error, ExitCode

namespace {

using namespace gpt2;

__attribute__((section(".preinit_array"), used)) void (*before_libraries)(int, char**,
                                                                          char**) = refuse_little_address_space;

constexpr StopMessages kStopWords = {
    .at_once = "stopped before the first step: there is nothing to save\n",
    .later = "stopping after this step; again to quit now\n",
    .again = "stopped at once: steps since the last checkpoint are lost, the checkpoint itself is whole\n",
};

ExitCode print(const std::string& text) {
  std::cout << text;
  return ExitCode::done;
}

ExitCode evaluate(const CommandLine& command_line, RankGroup& group, Console& console) {
  const RunSettings settings = settle(command_line, find_resume_point(command_line, group));
  const OpenBackend open = open_backend(backend_options(settings.options, group));
  return evaluate_only(settings, open.device, *open.backend, group, console);
}

ExitCode train_or_evaluate(const CommandLine& command_line, RankGroup& group, Console& console) {
  if (command_line.options.eval_only)
    return again_if_removed(command_line.options.resume, [&] { return evaluate(command_line, group, console); });
  const RunSettings settings = settle(command_line, find_resume_point(command_line, group));
  const OpenBackend open = open_backend(backend_options(settings.options, group));
  Session session(settings, open.device, *open.backend, group, console);
  return as_one_of(group, [&] { return Trainer(session).run(); }); // while the model still stands
}

// Of the ranks that a launcher has started, one speaks; the others have nothing to do.
ExitCode plan_only(const CommandLine& command_line) {
  const std::optional<Launch> launch = find_launch(process_environment());
  const Options& asked = command_line.options;
  if (launch ? launch->rank > 0 : asked.rank > 0) return ExitCode::done;
  const PlannedRun planned = plan_run(command_line, planned_ranks(asked, process_environment()), asked.measure);
  if (asked.json) return print(plan_json(planned));
  Console console(std::cout, is_terminal(), is_terminal() && wants_colour());
  for (const std::string& note : planned.notes) console.line("note: " + note, Style::warning);
  console.table(plan_table(planned));
  console.line("a plan: nothing was started or written");
  return ExitCode::done;
}

ExitCode run(int argc, char** argv, const StopSignal& stop) {
  const auto command_line = parse_options(argc, argv, "train_gpt2_fp8 " GPT2_VERSION ", " + cuda_version());
  if (!command_line) return ExitCode::done;
  const Options& asked = command_line->options;
  if (asked.print_config) return print(to_explained_toml(asked));
  if (asked.list_checkpoints) return print(describe_checkpoints(checkpoint_dirs(asked)));
  if (asked.plan) return plan_only(*command_line);
  if (const int children = ranks_to_start(asked, process_environment()))
    return static_cast<ExitCode>(run_ranks(children, argv)); // the worst of theirs

  const std::unique_ptr<RankGroup> group = join_ranks(asked, process_environment());
  if (!group->alone()) stop.defer(); // ranks leave together, where they agree on it
  std::ostream nowhere(nullptr);
  const bool terminal = is_terminal() && !behind_launcher(process_environment());
  Console console(group->leads() ? std::cout : nowhere, group->leads() && terminal, terminal && wants_colour());
  return as_one_of(
      *group, [&] { return train_or_evaluate(*command_line, *group, console); }, &stop);
}

} // namespace

int main(int argc, char** argv) {
  const StopSignal stop(kStopWords); // before all else: no moment of a run is without an answer
  return run_program([&] { return run(argc, argv, stop); });
}
