// Shows a training run on one screen of the terminal (docs/tools.md).
#include <chrono>
#include <iostream>
#include <thread>

#include "engine/base/stopwatch.h"
#include "engine/system/process.h"
#include "engine/system/terminal.h"
#include "tools/common/tool_arguments.h"
#include "tools/report/run_state.h"
#include "tools/report/terminal_screen.h"

namespace {

using namespace gpt2;

constexpr int kFewestColumns = 40, kFewestRows = 16;

struct Command {
  std::string run = kLatestRun, log_dir = "runs";
  double every = 2; // seconds
  bool once = false;
};

// `in_place`: replaces the previous screen. Each line is cleared before it is written: a full line leaves the cursor in
// the last column, where clearing would erase a character.
void print(const RunReader& run, bool in_place) {
  const ScreenSize size{.columns = static_cast<size_t>(std::max(terminal_columns(), kFewestColumns)),
                        .rows = static_cast<size_t>(std::max(terminal_rows(), kFewestRows) - 1),
                        .color = wants_color()};
  std::string out = in_place ? "\033[H" : "";
  for (const std::string& line : terminal_screen(run, size)) out += (in_place ? "\033[K" : "") + line + "\n";
  std::cout << out << (in_place ? "\033[J" : "") << std::flush;
}

void add_options(CLI::App& app, Command& command) {
  app.add_option("run", command.run, "folder of a run, its name in --log_dir, or latest; default: latest");
  add_log_dir(app, command.log_dir);
  app.add_option("--every", command.every, "time between updates")
      ->check(number_in(0.1, 86400.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_flag("--once", command.once, "print one screen and exit");
}

ExitCode watch(const Command& command) {
  RunReader run(find_run(command.run, command.log_dir));
  if (command.once || !is_terminal()) {
    print(run, false);
    return ExitCode::done;
  }
  const StopSignal stop;
  stop.defer();
  std::cout << "\033[2J";
  for (;;) {
    const bool running = state_of(run) == "running";
    print(run, true);
    if (!running) return ExitCode::done;
    for (const Stopwatch pause; pause.seconds() < command.every;) {
      if (stop.requested()) return ExitCode::done;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    run.read();
  }
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(
      argc, argv, "Shows a run on one screen until it ends: progress, loss, speed, FP8 health, GPU, events.", "watch",
      add_options, watch);
}
