#include "engine/train/valid_checkpoint.h"

#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/dist/agreement.h"
#include "engine/io/checkpoint_names.h"
#include "engine/io/checkpoint_search.h"
#include "engine/io/checkpoint_verify.h"
#include "engine/train/resume.h"

namespace gpt2 {
namespace {

// Is it a certain checkpoint that --resume asks for, or just the newest of a run?
bool names_a_step(const std::string& which, const std::string& found) {
  const std::string name = std::filesystem::path(without_slashes(which)).filename().string();
  return is_number(name) || name == kBest || name == "state.h5" || name == std::filesystem::path(found).filename();
}

// Paths, one a line.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> agree_on_others(const std::string& checkpoint, RankGroup& group) {
  std::string text;
  if (group.leads()) {
    for (const std::string& other : others_of_run(checkpoint)) text += other + "\n";
  }
  return lines_of(group.broadcast(text));
}

// Rank 0 looks for it. What it does not find, one line says for all.
std::string agree_on_checkpoint(const std::vector<std::string>& folders, const std::string& run,
                                const std::string& which, RankGroup& group) {
  std::string found;
  const std::optional<Error> error = attempt([&] {
    if (group.leads()) found = find_checkpoint(folders, run, which);
  });
  if (const std::optional<RankError> of_rank_0 = first_error(group, error)) throw_agreed(group, of_rank_0->error);
  return group.broadcast(found);
}

[[noreturn]] void refuse(const Error& fault, const std::string& checkpoint, RankGroup& group) {
  std::string hint = fault.hint();
  if (hint.empty()) {
    if (group.leads()) {
      const auto busy = group.busy(); // it verifies another one
      hint = hint_if_damaged(checkpoint);
    }
    hint = group.broadcast(hint);
  }
  throw AgreedError(ExitCode::checkpoint, fault.what(), hint);
}

// `found`, or the newest valid one of its run.
std::string choose_valid(const std::string& found, bool no_other, RankGroup& group, std::vector<std::string>& notes) {
  const std::optional<Error> fault = find_fault(found, group);
  if (!fault) return found;
  if (no_other) refuse(*fault, found, group);
  std::vector<std::string> faults = {fault->what()};
  for (const std::string& other : agree_on_others(found, group)) {
    if (const std::optional<Error> another = find_fault(other, group)) {
      faults.push_back(another->what());
      continue;
    }
    notes.insert(notes.end(), faults.begin(), faults.end());
    notes.push_back("going back to " + other + ", the newest valid checkpoint of the run");
    return other;
  }
  throw AgreedError(ExitCode::checkpoint, fault->what(),
                    "start a new run without --resume: no other checkpoint of the run is valid");
}

} // namespace

CommandLine with_valid_checkpoint(const CommandLine& command_line, RankGroup& group) {
  CommandLine agreed = command_line;
  const Options& asked = command_line.options;
  if (asked.resume.empty()) return agreed;
  const std::string run = command_line.given.contains("run_name") ? asked.run_name : "";
  const std::string found = agree_on_checkpoint(checkpoint_dirs(asked), run, asked.resume, group);
  agreed.options.resume = choose_valid(found, names_a_step(asked.resume, found), group, agreed.notes);
  if (is_unverified(agreed.options.resume))
    agreed.notes.push_back(agreed.options.resume + " is from before checkpoints had hashes: it is read unverified");
  return agreed;
}

} // namespace gpt2
