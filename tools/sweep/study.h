// Several runs of the trainer in one folder, started as child processes one after another. What they have written says
// how far each is: the same command again leaves out what is done and goes on with what was cut.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/process.h"
#include "engine/train/options.h"
#include "tools/report/run_metrics.h"

namespace gpt2 {

struct StudyRun {
  std::string name;
  std::vector<std::string> flags; // of the trainer, without those that a study gives
  Options options;                // that they stand for
  std::set<std::string> given;
};

// Throws Error(usage) as the trainer would, after "`origin`: ", and for flags that the study gives itself.
StudyRun make_study_run(const std::string& name, const std::vector<std::string>& flags, const std::string& origin);

// A name of a folder for any text: "max_lr=1e-3" becomes "max_lr_1e-3".
std::string folder_name(const std::string& text);

enum class RunStage { to_do, cut, running, done, diverged };

struct RunProgress {
  RunStage stage = RunStage::to_do;
  int64_t step = 0, max_steps = 0; // 0: not begun
};
std::string describe(const RunProgress& progress); // "cut at step 40 of 60"

// The trainer that was built with this program; `asked` if it is not empty. Throws Error(usage) if there is none.
std::string find_trainer(const std::string& asked);

inline constexpr StopWords kStudyStopWords = {
    .at_once = "stopped: no run was under way\n",
    .later = "stopping: the run under way saves first; again to leave it to that\n",
    .again = "left: the run under way saves and ends by itself\n",
};

class Study {
 public:
  // `folder`: logs and checkpoints of a run go to FOLDER/NAME, what it prints to console.log there, the options that it
  // was begun with to asked.toml.
  Study(std::string folder, std::string trainer, std::vector<StudyRun> runs);

  const std::vector<StudyRun>& runs() const { return runs_; }
  const std::string& folder() const { return folder_; }
  std::string folder_of(const StudyRun& run) const { return folder_ + "/" + run.name; }

  // Throws Error(usage) if the folder holds a run of that name with other options, given or left out: it is not the one
  // that is meant. Runs of older versions have no asked.toml: there only what is given now is compared.
  RunProgress progress(const StudyRun& run) const;

  std::vector<std::string> command(const StudyRun& run) const; // that begins it, or goes on with it

  struct Failure {
    std::string name;
    int status; // exit code of the trainer, or 128 + a signal
    std::string last_words;
  };
  struct Ending {
    std::vector<Failure> failures;
    bool stopped = false; // by a signal: the run under way was asked to save, the others were not begun
  };
  // Runs what is not done, in the order of runs(), and says a line for each. A failure does not keep the next from
  // running.
  Ending train(const StopSignal& stop) const;

  struct Result {
    size_t index; // of the run, in runs()
    RunReader reader;
  };
  // What the runs that have begun have written. One that cannot be read is left out, and is a failure of `ending`.
  std::vector<Result> results(Ending& ending) const;

 private:
  void train_one(const StudyRun& run, const std::string& place, const StopSignal& stop, Ending& ending) const;

  const std::string folder_, trainer_;
  const std::vector<StudyRun> runs_;
};

// 75 if it was stopped, else the exit code of the first failure, else 0; failures are named on stderr.
ExitCode report_ending(const Study::Ending& ending, const Study& study);

} // namespace gpt2
