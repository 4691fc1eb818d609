// A set of training runs in one folder, trained one after another as child processes. Their metrics.jsonl files hold
// the progress: called again, it skips finished runs and resumes stopped ones.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/options/options.h"
#include "engine/system/process.h"
#include "tools/report/run_metrics.h"

namespace gpt2 {

struct RunSpec {
  std::string name;
  std::vector<std::string> flags; // trainer flags, without those that RunSet adds
  Options options;                // parsed from `flags`
  std::set<std::string> given;    // names of the options in `flags`
};

// Throws the trainer's Error(usage) with the prefix "`origin`: ", also for flags that RunSet adds itself.
RunSpec make_run_spec(const std::string& name, const std::vector<std::string>& flags, const std::string& origin);

// Turns any text into a folder name: "max_lr=1e-3" becomes "max_lr_1e-3".
std::string folder_name(const std::string& text);

enum class RunStage { pending, stopped, running, done, diverged };

struct RunProgress {
  RunStage stage = RunStage::pending;
  int64_t step = 0, max_steps = 0; // 0: not started
};
std::string describe(const RunProgress& progress); // "stopped at step 40 of 60"

// Returns `asked`, or if it is empty the trainer built with this program. Throws Error(usage) if it does not exist.
std::string find_trainer(const std::string& asked);

class RunSet {
 public:
  // FOLDER/NAME of each run holds its logs and checkpoints, its output (console.log) and its options (asked.toml).
  RunSet(std::string folder, std::string trainer, std::vector<RunSpec> runs);

  const std::vector<RunSpec>& runs() const { return runs_; }
  const std::string& folder() const { return folder_; }
  std::string folder_of(const RunSpec& run) const { return folder_ + "/" + run.name; }

  // Throws Error(usage) if the folder holds a run of that name with other options. Without asked.toml (older versions)
  // it compares only the options given now.
  RunProgress progress(const RunSpec& run) const;

  std::vector<std::string> command(const RunSpec& run) const; // starts or resumes the run

  struct Failure {
    std::string name;
    int status; // exit code of the trainer, or 128 + signal
    std::string error_line;
  };
  struct Ending {
    std::vector<Failure> failures;
    bool stopped = false; // by a signal: the active run saves, the others did not start
  };
  // Trains every unfinished run in the order of runs() and logs a line for each. A failure does not stop the others; a
  // signal does.
  Ending train() const;

  struct Result {
    size_t index; // in runs()
    RunReader reader;
  };
  // The metrics of all started runs. An unreadable run is omitted and added to the failures of `ending`.
  std::vector<Result> results(Ending& ending) const;

 private:
  void train_one(const RunSpec& run, const std::string& place, const StopSignal& stop, Ending& ending) const;

  const std::string folder_, trainer_;
  const std::vector<RunSpec> runs_;
};

// Logs how to resume, and prints the failures to stderr. Returns 75 if stopped, else the exit code of the first
// failure, else 0.
ExitCode report_ending(const RunSet::Ending& ending, const RunSet& run_set);

} // namespace gpt2
