// Checks whether this machine is ready for a run, and estimates how long it takes (docs/tools.md).
#include <algorithm>
#include <iostream>

#include "engine/base/stopwatch.h"
#include "engine/options/parse_options.h"
#include "engine/system/process.h"
#include "engine/system/program.h"
#include "engine/system/terminal.h"
#include "tools/doctor/examine.h"
#include "tools/doctor/finding_text.h"

namespace {

using namespace gpt2;

const char* const kHelp =
    R"(Checks whether this machine is ready for a run: GPUs, libraries, precisions,
speed, disk, checkpoints, data, memory, 20 training steps in each precision, the
expected end. Leaves no files behind.

Usage: bin/doctor [OPTIONS] [OPTIONS of train_gpt2_fp8, such as --config FILE]

Options
  --data PATH               read a whole dataset (its folder, or a glob of
                            shards) and verify every hash
  --json                    one JSON object: {"verdict": "ok|warn|fail",
                            "exit_code": 0, "findings": [...]}
  -h, --help                print this and exit

Exit code: 0 if all lines are ok (green) or warn (yellow); with a fail (red),
the exit code of such a run: 3 data, 4 checkpoint, 5 numerics, 6 device,
7 communication, 8 disk; 2 for wrong options.
)";

struct Command {
  std::string data;
  bool json = false, help = false;
  std::vector<const char*> options; // for the trainer
};

Command parse(int argc, char** argv) {
  Command command;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      command.json = true;
    } else if (word == "--help" || word == "-h") {
      command.help = true;
    } else if (word == "--data" || word.starts_with("--data=")) {
      const bool joined = word.size() > 6;
      if (!joined && ++i == argc)
        throw Error(ExitCode::usage, "--data needs a value: a dataset folder or a glob of shards");
      command.data = joined ? word.substr(7) : argv[i];
      if (command.data.empty())
        throw Error(ExitCode::usage, "--data needs a value: a dataset folder or a glob of shards");
    } else {
      command.options.push_back(argv[i]);
    }
  }
  return command;
}

ExitCode run(int argc, char** argv) {
  const Command command = parse(argc, argv);
  if (command.help) {
    std::cout << kHelp;
    return ExitCode::done;
  }
  const auto line =
      parse_options(static_cast<int>(command.options.size()), command.options.data(), "doctor " GPT2_VERSION);
  if (!line) return ExitCode::done;
  const Options& options = line->options;
  if (options.print_config || options.list_checkpoints || options.eval_only || options.plan)
    throw Error(ExitCode::usage, "bin/doctor takes no action flags",
                "remove --plan, --print_config and the like, or call train_gpt2_fp8");

  const Stopwatch watch;
  const bool colour = wants_colour();
  const auto columns = static_cast<size_t>(is_terminal() ? std::max(40, terminal_columns()) : 10000);
  const std::vector<Finding> findings = examine(*line, command.data, [&](const Finding& finding) {
    if (!command.json) std::cout << finding_text(finding, colour, columns) << std::endl;
  });
  std::cout << (command.json ? findings_json(findings) : summary_text(findings, watch.seconds(), colour)) << std::endl;
  return exit_code_of(findings);
}

} // namespace

int main(int argc, char** argv) {
  const StopSignal stop;
  return run_program([&] { return run(argc, argv); });
}
