// Which checkpoint --resume leads to, and what it says of its run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/options/options.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

struct ResumePoint {
  std::string checkpoint;              // its folder, as it was found
  std::string checkpoint_dir = {};     // where its run is, in the folder
  std::string run = {};                // of this name, wherever that is now
  std::string log_dir = {};            // that holds the run's metrics.jsonl; the default where none does
  Options options = {};                // as its run resolved them
  int64_t step = 0;                    // that is done
  int ranks = 1;                       // that wrote it
  std::string precision = {};          // it was trained in, "fp8"
  std::string data = {};               // it was trained on, Dataset::fingerprint(); "": not known
  bool step_named = false;             // --resume asked for this step, not for the newest of a run
  std::vector<std::string> notes = {}; // which others are damaged
};

// Rank 0 follows --resume and reads the checkpoint's state; all ranks verify its files together and get the same
// answer; nullopt without --resume. Where the checkpoint is damaged and --resume named no certain step (latest, a run),
// the newest valid one of its run takes its place; one of a newer program or that cannot be read now is an error, not
// damage. Throws AgreedError(checkpoint) if there is nothing to resume from.
std::optional<ResumePoint> find_resume_point(const CommandLine& line, RankGroup& group);

// A run may prune a checkpoint while it is read. Calls `read`, and if that throws removed_meanwhile() and `which`
// (--resume) names no certain step, calls it again: `read` finds what --resume means now. Every rank must see the same
// error.
bool may_look_again(const std::string& which, const Error& error);
template <class Read>
auto again_if_removed(const std::string& which, const Read& read) {
  constexpr int kMostAttempts = 5;
  for (int attempt = 1;; ++attempt) {
    try {
      return read();
    } catch (const Error& error) {
      if (attempt == kMostAttempts || !may_look_again(which, error)) throw;
    }
  }
}

// Where checkpoints are looked for: --checkpoint_dir, or without it every default one.
std::vector<std::string> checkpoint_dirs(const Options& options);

// --list_checkpoints: one line a checkpoint, below the name of its run; the run that saved last at the end.
std::string describe_checkpoints(const std::vector<std::string>& checkpoint_dirs);

} // namespace gpt2
