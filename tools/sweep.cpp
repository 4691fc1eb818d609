// Trains every run of a sweep, one after another or as a Slurm array; prints a table and writes a page (docs/tools.md).
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <numeric>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/shell_quote.h"
#include "engine/system/files.h"
#include "tools/common/child_process.h"
#include "tools/common/output_kinds.h"
#include "tools/common/shell_words.h"
#include "tools/common/tool_arguments.h"
#include "tools/report/page.h"
#include "tools/report/page_data.h"
#include "tools/report/run_table.h"
#include "tools/sweep/slurm_array.h"
#include "tools/sweep/sweep_file.h"

namespace {

using namespace gpt2;
namespace fs = std::filesystem;

struct Command {
  std::string file, dir, program, sbatch;
  int only = 0; // number of a run; 0: all
  bool list = false, submit = false, dry_run = false, overwrite = false;
};

void add_options(CLI::App& app, Command& command) {
  app.footer("Run the same command again to skip finished runs and resume stopped ones.");
  app.add_option("file", command.file, "options of all runs, [grid] and [[run]]")->required();
  app.add_option("--dir", command.dir, "folder for logs and checkpoints; default: runs/NAME, after the file")
      ->type_name("DIR");
  app.add_flag("--list", command.list, "list the runs with their progress; train nothing");
  app.add_option("--only", command.only, "train only the run with this number in --list")->type_name("N");
  app.add_flag("--submit", command.submit, "submit the unfinished runs to Slurm as a job array");
  app.add_flag("--dry_run", command.dry_run, "with --submit: print the job script, submit nothing");
  app.add_option("--sbatch", command.sbatch, "flags for sbatch, quoted as in a shell")->type_name("FLAGS");
  add_overwrite(app, command.overwrite, "replace existing DIR/report.html and DIR/submit.sh");
  app.add_option("--program", command.program, "the trainer; default: the one built with this tool")->type_name("FILE");
}

ExitCode list(const RunSet& run_set, const Command& command) {
  size_t width = 0;
  for (const RunSpec& run : run_set.runs()) width = std::max(width, run.name.size());
  for (size_t i = 0; i < run_set.runs().size(); ++i) {
    const RunSpec& run = run_set.runs()[i];
    const std::string number = std::to_string(command.only > 0 ? command.only : static_cast<int>(i) + 1);
    log_info(std::string(number.size() < 4 ? 4 - number.size() : 0, ' ') + number + "  " + run.name +
             std::string(width - run.name.size() + 2, ' ') + describe(run_set.progress(run)));
  }
  return ExitCode::done;
}

// ---- Slurm ----

ExitCode submit(const RunSet& run_set, const Sweep& sweep, const Command& command) {
  SlurmArray array{sweep.name, run_set.folder(), {fs::read_symlink("/proc/self/exe").string(), command.file}, {}};
  if (!command.dir.empty()) array.command.insert(array.command.end(), {"--dir", command.dir});
  if (!command.program.empty()) array.command.insert(array.command.end(), {"--program", command.program});
  for (size_t i = 0; i < run_set.runs().size(); ++i) {
    const RunStage stage = run_set.progress(run_set.runs()[i]).stage;
    if (stage == RunStage::pending || stage == RunStage::stopped) array.numbers.push_back(static_cast<int>(i) + 1);
  }
  if (array.numbers.empty()) {
    log_info("nothing to submit: every run is done, diverged or running");
    return ExitCode::done;
  }
  const std::string script = slurm_script(array), path = run_set.folder() + "/submit.sh";
  if (command.dry_run) {
    std::cout << script << std::flush;
    return ExitCode::done;
  }
  refuse_foreign_file(path, kSlurmOutput, command.overwrite);
  make_folders(run_set.folder());
  write_file_atomic(path, script);
  std::vector<std::string> words{"sbatch", "--parsable"};
  for (const std::string& flag : shell_words(command.sbatch, "--sbatch")) words.push_back(flag);
  words.push_back(path);
  ChildProcess child(words);
  std::string job;
  for (std::string line; child.next_line(line);) job += line;
  const ChildProcess::Ending end = child.wait();
  if (end.status != 0)
    throw Error(ExitCode::usage, "sbatch failed: " + end.error_line,
                "see " + path + "; --sbatch passes flags to sbatch");
  log_info("job " + job + ", " + counted(static_cast<int64_t>(array.numbers.size()), "task") +
           "; afterwards: bin/sweep " + shell_quote(command.file) +
           (command.dir.empty() ? "" : " --dir " + shell_quote(command.dir)));
  return ExitCode::done;
}

// ---- the end ----

// The started runs by validation loss, lowest first.
std::vector<RunReader> best_first(std::vector<RunSet::Result> results) {
  std::vector<RunReader> runs;
  for (RunSet::Result& result : results) runs.push_back(std::move(result.reader));
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const double left = last_validation(runs[a]), right = last_validation(runs[b]);
    return std::isnan(right) ? !std::isnan(left) : left < right;
  });
  std::vector<RunReader> sorted;
  for (const size_t index : order) sorted.push_back(std::move(runs[index]));
  return sorted;
}

std::string page_of(const RunSet& run_set) { return run_set.folder() + "/report.html"; }

void show(const RunSet& run_set, RunSet::Ending& ending, const std::string& name) {
  const std::vector<RunReader> runs = best_first(run_set.results(ending));
  if (runs.empty()) return;
  for (const std::string& line : run_table(runs)) log_info(line);
  log_info(write_page(page_of(run_set), page_data(runs), name));
}

ExitCode sweep(Command& command) {
  if (command.dry_run && !command.submit)
    throw Error(ExitCode::usage, "--dry_run needs --submit", "to see the runs use --list");
  Sweep sweep = read_sweep(command.file);
  const int count = static_cast<int>(sweep.runs.size());
  if (command.only < 0 || command.only > count)
    throw Error(ExitCode::usage, "--only " + std::to_string(command.only) + ": the runs have numbers from 1 to " +
                                     std::to_string(count));
  if (command.only > 0) sweep.runs = {sweep.runs[static_cast<size_t>(command.only) - 1]};
  const std::string folder = command.dir.empty() ? "runs/" + sweep.name : command.dir;
  const RunSet run_set(folder, find_trainer(command.program), sweep.runs);
  if (command.list) return list(run_set, command);
  if (command.submit) return submit(run_set, sweep, command);

  if (command.only == 0) refuse_foreign_file(page_of(run_set), kPageOutput, command.overwrite);
  RunSet::Ending ending = run_set.train();
  if (command.only == 0) show(run_set, ending, sweep.name);
  return report_ending(ending, run_set);
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(argc, argv, "Trains every run of a grid or list of options; resumes where it stopped.",
                                 "sweep", add_options, sweep);
}
