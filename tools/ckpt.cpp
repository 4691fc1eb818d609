// Inspects and prunes checkpoints: ckpt list|runs|show|verify|diff|prune (docs/checkpoints.md).
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/pruning.h"
#include "engine/checkpoint/search.h"
#include "engine/checkpoint/verify.h"
#include "engine/options/parse_options.h"
#include "engine/options/run_plan.h"
#include "engine/system/folder_lock.h"
#include "tools/ckpt/checkpoint_diff.h"
#include "tools/ckpt/checkpoint_list.h"
#include "tools/ckpt/dead_runs.h"
#include "tools/common/tool_arguments.h"

namespace {

using namespace gpt2;
namespace fs = std::filesystem;

constexpr ExitCode kDifferent = static_cast<ExitCode>(1); // like diff and cmp

struct Command {
  ExitCode (*run)(const Command&) = nullptr;
  std::vector<std::string> folders; // list, runs, verify
  std::string a, b;                 // checkpoints
  std::string log_dir = "runs";
  bool quick = false, dry_run = false, dead_runs = false, yes = false;
  KeepRule keep;
};

std::string find(const std::string& which) {
  return find_checkpoint(default_checkpoint_dirs(), "", which, "name one by its path");
}

// Reads the checkpoint named `which`. If a run prunes it meanwhile, resolves `which` again, or throws that it was
// removed.
template <class Read>
auto read_found(const std::string& which, const Read& read) {
  constexpr int kMostAttempts = 5;
  std::string path = find(which);
  for (int attempt = 1;; ++attempt) {
    try {
      return read(path);
    } catch (const Error&) {
      if (is_complete(path)) throw;
      std::string now;
      try {
        now = find(which);
      } catch (const Error&) { // still removed
      }
      if (now.empty() || now == path || attempt == kMostAttempts) throw removed_meanwhile(path);
      path = now;
    }
  }
}

struct Found {
  std::string path;
  OpenCheckpoint checkpoint;
};
Found open_found(const std::string& which) {
  return read_found(which, [](const std::string& path) { return Found{path, open_checkpoint(path)}; });
}

// The folder of that path, or of the run of that name; empty: neither exists.
std::string folder_named(const std::string& name) {
  if (fs::is_directory(name)) return name;
  for (const std::string& dir : default_checkpoint_dirs()) {
    const std::string run = dir + "/" + name;
    if (fs::is_directory(run) && !list_checkpoints({run}).empty()) return run;
  }
  return "";
}

// ---- list ----

// "valid, latest, best", "latest, state.h5 is damaged: ..."
std::string state_text(const CheckpointInfo& info, bool quick) {
  std::string reason = info.is_damaged() || !quick ? why_invalid(info.path) : "";
  if (reason.starts_with(info.path + "/")) reason.erase(0, info.path.size() + 1);
  std::vector<std::string> words;
  if (reason.empty()) words.push_back(quick ? "not verified" : "valid");
  if (info.latest) words.push_back("latest");
  if (info.best) words.push_back("best");
  if (!reason.empty()) words.push_back(reason);
  return listed(words);
}

std::string loss_text(const CheckpointInfo& info) {
  return info.val_loss < kNoLoss && info.val_step == info.step ? formatted("%.4f", info.val_loss) : "-";
}

ExitCode list(const Command& command) {
  std::vector<std::string> folders;
  for (const std::string& name : command.folders) {
    folders.push_back(name == kLatest ? fs::path(find(name)).parent_path().string() : folder_named(name));
    if (folders.back().empty())
      throw Error(ExitCode::checkpoint, "no folder or run " + name,
                  "name a folder of checkpoints or a run, or none to list all");
  }
  const std::vector<CheckpointInfo> all = list_checkpoints(folders.empty() ? default_checkpoint_dirs() : folders);
  std::string folder;
  for (const CheckpointInfo& info : all) {
    if (const std::string its = fs::path(info.path).parent_path().string(); its != folder) {
      std::cout << (folder.empty() ? "" : "\n") << (folder = its) << (info.model.empty() ? "" : ": " + info.model)
                << "\n     step     loss  written              size type ranks\n";
    }
    std::cout << formatted(
        "%9lld %8s  %-16.16s %8s %-4.4s %5d  %s\n", static_cast<long long>(info.step), loss_text(info).c_str(),
        info.is_damaged() ? "-" : info.written.c_str(), format_bytes(static_cast<double>(info.bytes)).c_str(),
        info.is_damaged() ? "-" : info.precision.c_str(), info.ranks, state_text(info, command.quick).c_str());
  }
  if (all.empty()) log_info("no checkpoints");
  return ExitCode::done;
}

// ---- runs ----

ExitCode runs(const Command& command) {
  std::cout << describe_checkpoints(command.folders.empty() ? default_checkpoint_dirs() : command.folders);
  return ExitCode::done;
}

// ---- show ----

// What a checkpoint stores of a run that was never evaluated is not a number for people.
std::string shown(const std::string& name, const std::string& value) {
  const bool none = (name.ends_with("val_loss") && value == "1e+30") || (name.ends_with("val_step") && value == "-1");
  return none ? "none" : value;
}

ExitCode show(const Command& command) {
  auto [path, checkpoint] = open_found(command.a);
  std::cout << path << "\n";
  for (const auto& [name, value] : checkpoint.scalars) {
    const bool lines = value.find('\n') != std::string::npos;
    std::cout << name << (lines ? ":\n" : " = ") << shown(name, value) << (lines && value.ends_with('\n') ? "" : "\n");
  }
  std::cout << formatted("\n%-34s %-14s %10s %10s %10s %10s\n", "tensor", "shape", "min", "max", "mean", "norm");
  for (const TensorSummary& tensor : summarize(checkpoint)) {
    std::cout << formatted("%-34s %-14s %10.3e %10.3e %10.3e %10.3e", tensor.name.c_str(),
                           listed(tensor.shape, " x ").c_str(), tensor.min, tensor.max, tensor.mean, tensor.norm);
    if (tensor.not_finite > 0) std::cout << "  " << tensor.not_finite << " not finite";
    std::cout << "\n";
  }
  return ExitCode::done;
}

// ---- verify ----

ExitCode verify(const Command& command) {
  std::vector<std::string> paths;
  for (const std::string& name : command.folders.empty() ? default_checkpoint_dirs() : command.folders) {
    const std::string folder = folder_named(name);
    const auto inside = folder.empty() ? std::vector<CheckpointInfo>() : list_checkpoints({folder});
    for (const CheckpointInfo& info : inside) paths.push_back(info.path);
    if (inside.empty() && !command.folders.empty()) paths.push_back(find(name));
  }
  size_t invalid = 0;
  for (const std::string& path : paths) {
    const std::string reason = why_invalid(path);
    invalid += reason.empty() || !is_complete(path) ? 0 : 1; // removed meanwhile is not invalid
    log_info(path + ": " + (reason.empty() ? "valid" : reason));
  }
  if (invalid > 0)
    throw Error(ExitCode::checkpoint, std::to_string(invalid) + " of " +
                                          counted(static_cast<int64_t>(paths.size()), "checkpoint") +
                                          (invalid == 1 ? " is not valid" : " are not valid"));
  if (paths.empty()) log_info("no checkpoints");
  return ExitCode::done;
}

// ---- diff ----

ExitCode diff(const Command& command) {
  auto [path_a, a] = open_found(command.a);
  auto [path_b, b] = open_found(command.b);
  const CheckpointDifference difference = compare(a, b);
  if (difference.none()) {
    log_info("no difference");
    return ExitCode::done;
  }
  std::cout << "A " << path_a << "\nB " << path_b << "\n";
  for (const ScalarDifference& scalar : difference.scalars)
    std::cout << scalar.name << ": " << shown(scalar.name, scalar.a) << " | " << shown(scalar.name, scalar.b) << "\n";
  if (!difference.tensors.empty())
    std::cout << formatted("%-34s %12s %12s %10s %10s\n", "tensor", "differ", "of", "largest", "relative");
  for (const TensorDifference& tensor : difference.tensors) {
    if (!tensor.only_in.empty())
      std::cout << formatted("%-34s only in %s, or of another shape\n", tensor.name.c_str(), tensor.only_in.c_str());
    else
      std::cout << formatted("%-34s %12lld %12lld %10.3e %10.3e\n", tensor.name.c_str(),
                             static_cast<long long>(tensor.count), static_cast<long long>(tensor.of), tensor.largest,
                             tensor.relative);
  }
  return kDifferent;
}

// ---- prune ----

// The checkpoint that a longer wsd run would start from stays. A run whose options cannot be read has none.
KeepRule with_cooldown(KeepRule rule, const std::string& run_folder) {
  try {
    const std::string options = read_checkpoint(latest_in(run_folder)).options_toml;
    rule.before_cooldown = keep_rule(from_toml(options, "options").options).before_cooldown;
  } catch (const Error&) {
  }
  return rule;
}

ExitCode remove_dead_runs(const Command& command) {
  if (!command.a.empty() || command.keep.newest > 0 || command.keep.every > 0)
    throw Error(ExitCode::usage, "--dead_runs takes no RUN, --keep or --keep_every", "give one or the other");
  const std::vector<DeadRun> dead = find_dead_runs(command.log_dir, default_checkpoint_dirs());
  const bool removes = command.yes && !command.dry_run;
  for (const DeadRun& run : dead) {
    if (removes) remove_dead_run(run);
    for (const std::string& folder : run.checkpoints) log_info((removes ? "removed " : "would remove ") + folder);
    log_info((removes ? "removed " : "would remove ") + run.logs + ": no step, no checkpoint");
  }
  if (dead.empty()) log_info("no dead runs in " + command.log_dir);
  if (!dead.empty() && !removes)
    log_info("nothing was removed: --yes removes " + counted(static_cast<int64_t>(dead.size()), "run"));
  return ExitCode::done;
}

ExitCode prune_run(const Command& command) {
  if (command.dead_runs) return remove_dead_runs(command);
  if (command.yes) throw Error(ExitCode::usage, "--yes needs --dead_runs", "give both, or neither");
  if (command.a.empty() || command.keep.newest == 0)
    throw Error(ExitCode::usage, command.a.empty() ? "missing argument RUN" : "missing --keep N",
                "bin/ckpt prune RUN --keep N, or bin/ckpt prune --dead_runs; see --help");
  const std::string folder = fs::path(find(command.a)).parent_path().string();
  if (command.a != kLatest && fs::path(folder).filename() != fs::path(without_slashes(command.a)).filename())
    throw Error(ExitCode::usage, command.a + " is not the folder or the name of one run",
                "the newest below it is " + folder);
  if (has_writer(folder)) throw Error(ExitCode::usage, "a run is writing to " + folder, "wait until it ends");
  const FolderLock alone(folder, "--run_name");
  const Pruned pruned = prune(folder, with_cooldown(command.keep, folder), command.dry_run);
  for (const std::string& path : pruned.removed) log_info((command.dry_run ? "would remove " : "removed ") + path);
  if (!pruned.why_not.empty()) throw Error(ExitCode::checkpoint, pruned.why_not);
  if (pruned.removed.empty()) log_info("nothing to remove in " + folder);
  return ExitCode::done;
}

// ---- the command line ----

void add_options(CLI::App& app, Command& c) {
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* meaning, ExitCode (*run)(const Command&)) {
    CLI::App* const subcommand = app.add_subcommand(name, meaning);
    subcommand->callback([&c, run] { c.run = run; });
    return subcommand;
  };
  const char* const one = "latest, best, STEP, RUN, RUN/STEP, RUN/best or a path, as for --resume";
  CLI::App* const list_app = add("list", "a table of all checkpoints and their validity", list);
  list_app->add_option("run", c.folders,
                       "runs, latest, or folders of them; default: all in " + listed(default_checkpoint_dirs()));
  list_app->add_flag("--quick", c.quick, "skip the comparison of hashes");
  add("runs", "the paths of all checkpoints, by run, as the trainer's --list_checkpoints prints them", runs)
      ->add_option("folders", c.folders, "folders to search; default: as for list");
  add("show", "everything in one checkpoint, with statistics of each tensor", show)
      ->add_option("checkpoint", c.a, one)
      ->required();
  add("verify", "compare every byte with its hash; exit 4 on a mismatch", verify)
      ->add_option("checkpoint", c.folders, "checkpoints, runs or folders of runs; default: all that list shows");
  CLI::App* const diff_app = add("diff", "list differing tensors; exit 1 if any differs", diff);
  diff_app->add_option("A", c.a, one)->required();
  diff_app->add_option("B", c.b, "the same")->required();
  CLI::App* const prune_app =
      add("prune", "remove old checkpoints of one run, but never its best; or dead runs", prune_run);
  prune_app->add_option("run", c.a, "a run's name or folder, or latest");
  prune_app->add_option("--keep", c.keep.newest, "number of newest checkpoints to keep")->check(number_from(1));
  prune_app->add_option("--keep_every", c.keep.every, "also keep the multiples of this step")->check(number_from(0));
  prune_app->add_flag("--dry_run,--dry-run", c.dry_run, "only print what would be removed");
  prune_app->add_flag("--dead_runs", c.dead_runs,
                      "instead: remove the log folders of runs that never completed a step");
  prune_app->add_flag("--yes", c.yes, "with --dead_runs: remove them; default: print their names");
  add_log_dir(*prune_app, c.log_dir);
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(argc, argv, "Inspects and prunes checkpoints.", "ckpt", add_options,
                                 [](const Command& command) { return command.run(command); });
}
