// Checks whether this machine is ready for a run, and estimates how long it takes (docs/tools.md).
#include <algorithm>
#include <iostream>

#include "engine/base/stopwatch.h"
#include "engine/system/process.h"
#include "engine/system/terminal.h"
#include "tools/common/tool_arguments.h"
#include "tools/common/trainer_flags.h"
#include "tools/doctor/checks.h"

namespace {

using namespace gpt2;

struct Command {
  std::string data;
  bool json = false;
  std::vector<std::string> flags; // the trainer's
};

void add_options(CLI::App& app, Command& command) {
  app.footer(
      "Give the options of the run, such as --config FILE.\n"
      "Exit code: 0 if all lines are ok (green) or warn (yellow); with a fail (red), the exit code of such a run: "
      "3 data, 4 checkpoint, 5 numerics, 6 device, 7 communication, 8 disk; 2 for wrong options.");
  app.add_option("--data", command.data, "read a whole dataset (its folder, or a glob of shards) and verify every hash")
      ->type_name("PATH");
  app.add_flag("--json", command.json,
               "one JSON object: {\"verdict\": \"ok|warn|fail\", \"exit_code\": 0, \"findings\": [...]}");
  take_trainer_flags(app, command.flags);
}

ExitCode run(const Command& command) {
  const StopSignal stop;
  const auto line = parse_trainer_flags(command.flags, "doctor " GPT2_VERSION);
  if (!line) return ExitCode::done;
  if (!trains(line->options))
    throw Error(ExitCode::usage, "bin/doctor takes no action flags",
                "remove --plan, --print_config and the like, or call train_gpt2_fp8");

  const Stopwatch watch;
  const bool color = wants_color();
  const auto columns = static_cast<size_t>(is_terminal() ? std::max(40, terminal_columns()) : 10000);
  const std::vector<Finding> findings = examine(*line, command.data, [&](const Finding& finding) {
    if (!command.json) std::cout << finding_text(finding, color, columns) << std::endl;
  });
  std::cout << (command.json ? findings_json(findings) : summary_text(findings, watch.seconds(), color)) << std::endl;
  return exit_code_of(findings);
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(argc, argv,
                                 "Checks whether this machine is ready for a run: GPUs, libraries, precisions, speed, "
                                 "disk, checkpoints, data, memory, 20 training steps in each precision, the expected "
                                 "end. Leaves no files behind.",
                                 "doctor", add_options, run);
}
