// Compares option sets over seeds with a verdict. Trains them, or reads finished runs (docs/tools.md).
#include "tools/compare/compare_runs.h"

#include <algorithm>
#include <string_view>

#include "tools/common/tool_arguments.h"

namespace {

using namespace gpt2;

void add_options(CLI::App& app, CompareCommand& command) {
  app.footer(
      "bin/compare --seeds 3 -- --max_steps 500\n"
      "    trains BF16 and FP8 (on a CPU FP32 and FP8), 3 seeds of each\n"
      "bin/compare RUN RUN RUN RUN\n"
      "    compares finished runs; runs that differ only in their seed form a group\n"
      "bin/compare old=RUN,RUN new=RUN,RUN\n"
      "    the same with named groups\n"
      "The first set or group is the baseline. Flags after -- go to every run.");
  app.add_option("run", command.runs, "finished runs: folders, names in --log_dir, latest, or NAME=RUN,RUN");
  app.add_option("--set", command.sets, "an option set to train: \"NAME: FLAGS\", quoted as in a shell; repeatable")
      ->type_name("SET");
  app.add_option("--seeds", command.seeds, "number of seeds, counted from 1; or a list: 1,5,9")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--dir", command.dir, "folder of the runs; the same command resumes there")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--margin", command.margin, "smaller gaps count as equal")
      ->type_name("NATS")
      ->check(number_in(1e-9, 100.0))
      ->capture_default_str();
  app.add_flag("--list", command.list, "list the runs with their progress; train nothing");
  add_overwrite(app, command.overwrite);
  app.add_option("-o,--output", command.output, "the page; default: compare.html in --dir, or next to the first run")
      ->type_name("FILE");
  app.add_flag("--json", command.json, "print numbers and curves as JSON instead of the table");
  add_log_dir(app, command.log_dir);
  app.add_option("--program", command.program, "the trainer; default: the one built with this tool")->type_name("FILE");
}

} // namespace

int main(int argc, char** argv) {
  char** const end = argv + argc;
  char** const own_end = std::find_if(argv, end, [](const char* word) { return std::string_view(word) == "--"; });
  return gpt2::run_tool<CompareCommand>(
      static_cast<int>(own_end - argv), argv,
      "Compares option sets over the same seeds and data: loss, speed, memory, a verdict.", "compare", add_options,
      [&](CompareCommand& command) {
        if (own_end != end) command.flags.assign(own_end + 1, end);
        return compare_runs(command);
      });
}
