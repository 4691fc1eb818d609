// What a run would need and cost, without starting it: takes the flags of train_gpt2_fp8, which runs this for --plan.
#include <iostream>

#include "engine/backend/backend.h"
#include "engine/options/parse_options.h"
#include "engine/system/process.h"
#include "engine/system/program.h"
#include "engine/system/terminal.h"
#include "tools/plan/dry_run.h"

namespace {

using namespace gpt2;

ExitCode run(int argc, char** argv) {
  const auto command_line = parse_options(argc, argv, "train_gpt2_fp8 " GPT2_VERSION ", " + cuda_version());
  if (!command_line) return ExitCode::done;
  const std::optional<Launch> launch = find_launch(process_environment());
  const Options& asked = command_line->options;
  if (launch ? launch->rank > 0 : asked.rank > 0) return ExitCode::done; // rank 0 prints for all
  const PlannedRun planned = plan_run(*command_line, planned_ranks(asked, process_environment()), asked.measure);
  if (asked.json) {
    std::cout << plan_json(planned);
    return ExitCode::done;
  }
  Console console(std::cout, is_terminal(), is_terminal() && wants_color());
  for (const std::string& note : planned.notes) console.line("note: " + note);
  console.table(plan_table(planned));
  console.line("a plan: nothing was started or written");
  return ExitCode::done;
}

} // namespace

int main(int argc, char** argv) {
  const StopSignal stop; // --measure trains
  return run_program([&] { return run(argc, argv); });
}
