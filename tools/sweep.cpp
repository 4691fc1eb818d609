// Trains every run of a sweep, one after another or as a Slurm array, and ends in a table and a page (docs/tools.md).
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <numeric>

#include "engine/base/files.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/output_file.h"
#include "engine/base/shell_words.h"
#include "tools/common/child_process.h"
#include "tools/common/tool_arguments.h"
#include "tools/report/option_defaults.h"
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
  app.footer("The same command again leaves out what is done and goes on with what was cut.");
  app.add_option("file", command.file, "options of all runs, [grid] and [[run]]")->required()->type_name("FILE.toml");
  app.add_option("--dir", command.dir, "where logs and checkpoints go; default: runs/NAME, the file's name")
      ->type_name("DIR");
  app.add_flag("--list", command.list, "show the runs and how far they are, train nothing");
  app.add_option("--only", command.only, "the run of this number alone, as in --list")->type_name("N");
  app.add_flag("--submit", command.submit, "hand what is not done to Slurm, as an array");
  app.add_flag("--dry_run", command.dry_run, "with --submit: print the job's script, submit nothing");
  app.add_option("--sbatch", command.sbatch, "flags for sbatch, quoted as in a shell")->type_name("FLAGS");
  add_overwrite(app, command.overwrite, "replace DIR/report.html and DIR/submit.sh, whoever wrote them");
  app.add_option("--program", command.program, "the trainer; default: the one that was built with this tool")
      ->type_name("FILE");
}

ExitCode list(const Study& study, const Command& command) {
  size_t width = 0;
  for (const StudyRun& run : study.runs()) width = std::max(width, run.name.size());
  for (size_t i = 0; i < study.runs().size(); ++i) {
    const StudyRun& run = study.runs()[i];
    const std::string number = std::to_string(command.only > 0 ? command.only : static_cast<int>(i) + 1);
    log_info(std::string(number.size() < 4 ? 4 - number.size() : 0, ' ') + number + "  " + run.name +
             std::string(width - run.name.size() + 2, ' ') + describe(study.progress(run)));
  }
  return ExitCode::done;
}

// ---- Slurm ----

ExitCode submit(const Study& study, const Sweep& sweep, const Command& command) {
  SlurmArray array{sweep.name, study.folder(), {fs::read_symlink("/proc/self/exe").string(), command.file}, {}};
  if (!command.dir.empty()) array.command.insert(array.command.end(), {"--dir", command.dir});
  if (!command.program.empty()) array.command.insert(array.command.end(), {"--program", command.program});
  for (size_t i = 0; i < study.runs().size(); ++i) {
    const RunStage stage = study.progress(study.runs()[i]).stage;
    if (stage == RunStage::to_do || stage == RunStage::cut) array.numbers.push_back(static_cast<int>(i) + 1);
  }
  if (array.numbers.empty()) {
    log_info("nothing to submit: every run is done or running");
    return ExitCode::done;
  }
  const std::string script = slurm_script(array), path = study.folder() + "/submit.sh";
  if (command.dry_run) {
    std::cout << script << std::flush;
    return ExitCode::done;
  }
  refuse_foreign_file(path, kSlurmOutput, command.overwrite);
  make_folders(study.folder());
  write_file_atomic(path, script);
  std::vector<std::string> words{"sbatch", "--parsable"};
  for (const std::string& flag : shell_words(command.sbatch, "--sbatch")) words.push_back(flag);
  words.push_back(path);
  ChildProcess child(words);
  std::string job;
  for (int c = std::fgetc(child.output()); c != EOF; c = std::fgetc(child.output()))
    if (c != '\n') job += static_cast<char>(c);
  const ChildProcess::Ending end = child.wait();
  if (end.status != 0)
    throw Error(ExitCode::usage, "sbatch refused it: " + end.last_words,
                "see " + path + ", and --sbatch for its flags");
  log_info("job " + job + ", " + std::to_string(array.numbers.size()) + " tasks; when they are done: bin/sweep " +
           shell_word(command.file) + (command.dir.empty() ? "" : " --dir " + shell_word(command.dir)));
  return ExitCode::done;
}

// ---- the end ----

// The runs that have begun, the lowest validation loss first.
std::vector<RunReader> best_first(std::vector<Study::Result> results) {
  std::vector<RunReader> runs;
  for (Study::Result& result : results) runs.push_back(std::move(result.reader));
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

std::string page_of(const Study& study) { return study.folder() + "/report.html"; }

void show(const Study& study, Study::Ending& ending, const std::string& name) {
  const std::vector<RunReader> runs = best_first(study.results(ending));
  if (runs.empty()) return;
  for (const std::string& line : run_table(runs)) log_info(line);
  const std::string path = page_of(study);
  const std::string page = page_html(page_data(runs, option_defaults()), name, Refresh::none, 0);
  write_file_atomic(path, page);
  log_info(path + ": " + format_bytes(static_cast<double>(page.size())));
}

ExitCode sweep(Command& command) {
  if (command.dry_run && !command.submit)
    throw Error(ExitCode::usage, "--dry_run belongs to --submit", "--list shows what would run");
  Sweep sweep = read_sweep(command.file);
  const int count = static_cast<int>(sweep.runs.size());
  if (command.only < 0 || command.only > count)
    throw Error(ExitCode::usage, "--only " + std::to_string(command.only) + ": the runs have numbers from 1 to " +
                                     std::to_string(count));
  if (command.only > 0) sweep.runs = {sweep.runs[static_cast<size_t>(command.only) - 1]};
  const std::string folder = command.dir.empty() ? "runs/" + sweep.name : command.dir;
  const Study study(folder, find_trainer(command.program), sweep.runs);
  if (command.list) return list(study, command);
  if (command.submit) return submit(study, sweep, command);

  if (command.only == 0) refuse_foreign_file(page_of(study), kPageOutput, command.overwrite);
  const StopSignal stop(kStudyStopWords);
  stop.defer();
  Study::Ending ending = study.train(stop);
  if (command.only == 0) show(study, ending, sweep.name);
  if (ending.stopped) log_info("stopped; the same command goes on");
  return report_ending(ending, study);
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(argc, argv, "Trains every run of a grid or list of options; resumable.", "sweep",
                                 add_options, sweep);
}
