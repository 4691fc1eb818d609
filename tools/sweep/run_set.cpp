#include "tools/sweep/run_set.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "engine/base/formatted.h"
#include "engine/base/json_reader.h"
#include "engine/base/log.h"
#include "engine/base/stopwatch.h"
#include "engine/base/toml.h"
#include "engine/checkpoint/search.h"
#include "engine/options/option_fields.h"
#include "engine/options/parse_options.h"
#include "engine/system/files.h"
#include "engine/system/folder_lock.h"
#include "tools/common/child_process.h"
#include "tools/common/trainer_flags.h"
#include "tools/report/run_metrics.h"
#include "tools/report/run_state.h"
#include "tools/report/run_table.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kPollMilliseconds = 100; // bounds the delay of passing a signal on to the child

void refuse_own_flags(const RunSpec& run, const std::string& origin) {
  for (const char* name : {"run_name", "log_dir", "checkpoint_dir", "resume"})
    if (run.given.contains(name))
      throw Error(ExitCode::usage, origin + ": --" + name + " is set for each run by this tool",
                  "remove it; --dir chooses the folder of the runs");
  if (!trains(run.options))
    throw Error(ExitCode::usage, origin + ": every run must train", "remove --plan, --print_config and the like");
}

[[noreturn]] void refuse(const std::string& folder, const std::string& option, const std::string& then,
                         const std::string& now) {
  throw Error(ExitCode::usage, folder + " was trained with " + option + " " + then + ", not " + now,
              "use the earlier value, choose another --dir, or remove that folder");
}

// Given options must equal those of the run; the trainer chooses the others.
void refuse_other_training(const RunSpec& run, const Json& trained_with, const std::string& folder) {
  for (const OptionField& field : option_fields()) {
    if (!run.given.contains(field.name) || field.not_stored || field.name == "num_epochs") continue;
    const Json asked = parse_json(field.toml(run.options));
    if (asked == "auto" || !trained_with.contains(field.name) || trained_with[field.name] == asked) continue;
    refuse(folder, field.name, trained_with[field.name].dump(), asked.dump());
  }
}

// The options as given, before the trainer replaces "auto" and --num_epochs by numbers.
std::string asked_file(const std::string& folder) { return folder + "/asked.toml"; }

using Settings = std::map<std::string, std::string>;

void take(Settings& settings, const std::string& toml, const std::string& origin) {
  for (const TomlLine& line : read_toml(toml, origin)) settings[line.key] = line.value;
}

std::string shown(const std::string& value) { return value.empty() ? "\"\"" : value; }

// Also refuses an option that was given at the start and is missing now. The number of kept checkpoints may differ: it
// does not change the training, and its default has changed.
void refuse_other_asked(const RunSpec& run, const std::string& folder) {
  const std::string path = asked_file(folder);
  std::error_code absent;
  if (!fs::exists(path, absent)) return; // started by an older version
  Settings then, now;
  take(then, to_toml(Options{}), "defaults"); // options unknown to that version keep their defaults
  take(then, read_text_file(path), path);
  take(now, to_toml(run.options), run.name);
  for (const auto& [name, value] : now)
    if (then[name] != value && !name.starts_with("keep_")) refuse(folder, name, shown(then[name]), shown(value));
}

RunStage stage_of(const RunMetrics& metrics, int64_t step, int64_t max_steps) {
  if (step >= max_steps && saved_step(metrics, max_steps)) return RunStage::done;
  return ended_on_skips(metrics) ? RunStage::diverged : RunStage::stopped;
}

// Appends the child's output to the log file. Passes a stop signal on to the child, which saves.
ChildProcess::Ending run_child(const std::vector<std::string>& command, const std::string& log_path,
                               const StopSignal& stop) {
  std::ofstream log(log_path, std::ios::app);
  ChildProcess child(command, ChildProcess::Signals::shielded);
  pollfd output{::fileno(child.output()), POLLIN, 0};
  std::array<char, 1 << 14> bytes;
  for (bool asked = false;;) {
    if (stop.requested() && !asked) asked = true, child.send(SIGTERM);
    if (::poll(&output, 1, kPollMilliseconds) <= 0) continue;
    const ssize_t count = ::read(output.fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    log.write(bytes.data(), count).flush();
  }
  ChildProcess::Ending ending = child.wait();
  if (!ending.error_line.empty()) log << ending.error_line << "\n";
  return ending;
}

std::string result_of(const std::string& folder) {
  const double loss = last_validation(RunReader(folder));
  return std::isnan(loss) ? "" : formatted(", validation loss %.4f", loss);
}

} // namespace

RunSpec make_run_spec(const std::string& name, const std::vector<std::string>& flags, const std::string& origin) {
  for (const std::string& flag : flags)
    if (flag == "--help" || flag == "-h" || flag == "--help_all" || flag == "--version" || flag == "--man_page" ||
        flag.rfind("--completion", 0) == 0)
      throw Error(ExitCode::usage, origin + ": " + flag + " does not train", "give training options");
  try {
    const auto line = parse_trainer_flags(flags, "");
    RunSpec run{name, flags, line->options, line->given};
    refuse_own_flags(run, origin);
    return run;
  } catch (const Error& error) {
    const std::string what = error.what();
    throw Error(error.code(), what.rfind(origin, 0) == 0 ? what : origin + ": " + what, error.hint());
  }
}

std::string folder_name(const std::string& text) {
  std::string name;
  for (const char c : text) name += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ? c : '_';
  while (!name.empty() && name.front() == '.') name.erase(0, 1);
  return name;
}

std::string describe(const RunProgress& progress) {
  const std::string steps = std::to_string(progress.step) + " of " + std::to_string(progress.max_steps);
  switch (progress.stage) {
    case RunStage::pending:
      return "not started";
    case RunStage::stopped:
      return "stopped at step " + steps;
    case RunStage::running:
      return "running, step " + steps;
    case RunStage::diverged:
      return "diverged at step " + steps;
    case RunStage::done:
      break;
  }
  return "done, " + counted(progress.step, "step");
}

std::string find_trainer(const std::string& asked) {
  std::error_code ignored;
  const std::string beside =
      (fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path() / "train_gpt2_fp8").string();
  const std::string program = asked.empty() ? beside : asked;
  if (::access(program.c_str(), X_OK) != 0 || fs::is_directory(program, ignored))
    throw Error(ExitCode::usage, "no trainer at " + program, "run make, or give --program FILE");
  return fs::absolute(program).string();
}

RunSet::RunSet(std::string folder, std::string trainer, std::vector<RunSpec> runs)
    : folder_(std::move(folder)), trainer_(std::move(trainer)), runs_(std::move(runs)) {
  if (folder_.empty()) throw Error(ExitCode::usage, "--dir needs a folder", "give a folder, or remove --dir");
}

RunProgress RunSet::progress(const RunSpec& run) const {
  const std::string folder = folder_of(run);
  std::error_code absent;
  if (!fs::exists(folder + "/metrics.jsonl", absent) || fs::file_size(folder + "/metrics.jsonl", absent) == 0)
    return {};
  const RunReader reader(folder);
  const Json& life = reader.metrics().lives.back();
  refuse_other_asked(run, folder);
  refuse_other_training(run, life["options"], folder);
  const auto& steps = reader.metrics().steps.at;
  RunProgress progress{RunStage::stopped, steps.empty() ? 0 : steps.back().step, life.value("max_steps", int64_t{0})};
  progress.stage =
      has_writer(folder) ? RunStage::running : stage_of(reader.metrics(), progress.step, progress.max_steps);
  return progress;
}

std::vector<std::string> RunSet::command(const RunSpec& run) const {
  std::vector<std::string> words{trainer_};
  words.insert(words.end(), run.flags.begin(), run.flags.end());
  for (const std::string& word : {std::string("--run_name"), run.name, std::string("--log_dir"), folder_,
                                  std::string("--checkpoint_dir"), folder_})
    words.push_back(word);
  if (!run.given.contains("keep_checkpoints"))
    words.insert(words.end(), {"--keep_checkpoints", "1"}); // many runs share one disk
  if (!latest_in(folder_of(run)).empty()) words.insert(words.end(), {"--resume", "latest"});
  return words;
}

RunSet::Ending RunSet::train() const {
  const StopSignal stop({.at_once = "stopped: no run was active\n",
                         .later = "stopping after the active run has saved; press again to leave now\n",
                         .again = "left: the active run saves and ends by itself\n"});
  stop.defer();
  Ending ending;
  for (const RunSpec& run : runs_) { // refuse runs with other options before training for hours
    try {
      progress(run);
    } catch (const Error& error) {
      if (error.code() == ExitCode::usage) throw;
    }
  }
  for (size_t i = 0; i < runs_.size() && !ending.stopped; ++i) {
    const std::string place = formatted("[%zu/%zu] ", i + 1, runs_.size()) + runs_[i].name + ": ";
    try {
      train_one(runs_[i], place, stop, ending);
    } catch (const Error& error) { // its files cannot be read or written
      ending.failures.push_back({runs_[i].name, static_cast<int>(error.code()), error.what()});
      log_info(place + "failed: " + error.what());
    }
  }
  return ending;
}

void RunSet::train_one(const RunSpec& run, const std::string& place, const StopSignal& stop, Ending& ending) const {
  const RunProgress before = progress(run);
  if (before.stage != RunStage::pending && before.stage != RunStage::stopped) {
    log_info(place + describe(before));
    if (before.stage == RunStage::diverged) // earlier divergence is a failure too
      ending.failures.push_back({run.name, static_cast<int>(ExitCode::numerics), describe(before)});
    return;
  }
  if (stop.requested()) {
    ending.stopped = true;
    return;
  }
  const Stopwatch watch;
  log_info(place + (before.stage == RunStage::stopped ? describe(before) + ", resuming" : "starting"));
  make_folders(folder_of(run));
  if (before.stage == RunStage::pending) write_file_atomic(asked_file(folder_of(run)), to_toml(run.options));
  const ChildProcess::Ending end = run_child(command(run), folder_of(run) + "/console.log", stop);
  if (end.status == static_cast<int>(ExitCode::done)) {
    log_info(place + "done in " + format_duration(watch.seconds()) + result_of(folder_of(run)));
    return;
  }
  const RunProgress after = progress(run);
  const bool ended_by_us = stop.requested() && end.status == 128 + SIGTERM; // before its signal handler was installed
  if (end.status == static_cast<int>(ExitCode::stopped_early) || ended_by_us) {
    ending.stopped = true;
    log_info(place + describe(after));
  } else if (after.stage == RunStage::running) { // another process started it first and holds the lock
    log_info(place + describe(after));
  } else {
    ending.failures.push_back({run.name, end.status, end.error_line});
    log_info(place + "failed, exit code " + std::to_string(end.status));
  }
}

std::vector<RunSet::Result> RunSet::results(Ending& ending) const {
  std::vector<Result> out;
  for (size_t i = 0; i < runs_.size(); ++i) {
    try {
      if (progress(runs_[i]).max_steps > 0) out.push_back({i, RunReader(folder_of(runs_[i]))});
    } catch (const Error& error) {
      const bool is_known = std::any_of(ending.failures.begin(), ending.failures.end(),
                                        [&](const Failure& failure) { return failure.name == runs_[i].name; });
      if (!is_known) ending.failures.push_back({runs_[i].name, static_cast<int>(error.code()), error.what()});
    }
  }
  return out;
}

ExitCode report_ending(const RunSet::Ending& ending, const RunSet& run_set) {
  if (ending.stopped) log_info("stopped; run the same command again to resume");
  for (const RunSet::Failure& failure : ending.failures) {
    const std::string words = without_error_prefix(failure.error_line);
    log_warn(failure.name + " failed with exit code " + std::to_string(failure.status) +
             (words.empty() ? "" : ": " + words) + " (see " + run_set.folder() + "/" + failure.name + "/console.log)");
  }
  if (ending.stopped) return ExitCode::stopped_early;
  return ending.failures.empty() ? ExitCode::done : static_cast<ExitCode>(ending.failures.front().status);
}

} // namespace gpt2
