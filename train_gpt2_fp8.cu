// The program: options -> backend -> session -> trainer.run(). No device code: plain C++ on top of the engine's
// library.
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "engine/backend/backend.h"  // defines: open_backend, cuda_version
#include "engine/base/process.h"     // defines: StopSignal
#include "engine/base/program.h"     // defines: run_program, Error, ExitCode
#include "engine/base/terminal.h"    // defines: is_terminal, wants_colour
#include "engine/dist/rank_group.h"  // defines: RankGroup
#include "engine/train/evaluation.h" // defines: evaluate_only
#include "engine/train/options.h"    // defines: parse_options
#include "engine/train/resume.h"     // defines: prepare_start (--resume), describe_checkpoints
#include "engine/train/run_plan.h"   // defines: backend_options
#include "engine/train/session.h"    // defines: Session
#include "engine/train/trainer.h"    // defines: Trainer

namespace {

using namespace gpt2;

ExitCode print(const std::string& text) {
  std::cout << text << std::flush;
  if (!std::cout)
    throw Error(ExitCode::disk, "standard output cannot be written", "free some space, or print elsewhere");
  return ExitCode::done;
}

ExitCode run(int argc, char** argv) {
  const auto command_line = parse_options(argc, argv, "train_gpt2_fp8 " GPT2_VERSION ", " + cuda_version());
  if (!command_line) return ExitCode::done;
  const Options& asked = command_line->options;
  if (asked.print_config) return print(to_explained_toml(asked));
  if (asked.list_checkpoints) return print(describe_checkpoints(asked.checkpoint_dir));

  std::optional<StopSignal> stop; // from here on Ctrl-C is answered; the trainer obeys
  if (!asked.eval_only) stop.emplace();
  const std::optional<Launch> launch = find_launch(process_environment());
  const auto group = launch ? RankGroup::join(*launch, {}) : std::make_unique<RankGroup>();
  const RunStart start = prepare_start(*command_line);
  const OpenBackend open = open_backend(backend_options(start.options));
  Console console(std::cout, is_terminal(), wants_colour());
  if (asked.eval_only) return evaluate_only(start, open.device, *open.backend, *group, console);
  Session session(start, open.device, *open.backend, *group, console);
  return Trainer(session).run();
}

} // namespace

int main(int argc, char** argv) {
  return run_program([&] { return run(argc, argv); });
}
