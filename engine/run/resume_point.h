// The checkpoint that --resume selects, and what it records about its run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/options/parse_options.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

struct ResumePoint {
  std::string checkpoint;              // its folder, as found
  std::string checkpoint_dir = {};     // --checkpoint_dir of its run
  std::string run = {};                // name of its run, by its folder
  std::string log_dir = {};            // of the run's metrics.jsonl; the default without one
  Options options = {};                // resolved, of its run
  int64_t step = 0;                    // completed steps
  int ranks = 1;                       // that wrote it
  std::string precision = {};          // of the training, "fp8"
  std::string data = {};               // Dataset::fingerprint() of the training data; "": unknown
  bool step_named = false;             // --resume names this step, not the newest of a run
  std::vector<std::string> notes = {}; // on damaged checkpoints
};

// Rank 0 resolves --resume and reads the checkpoint's state; all ranks verify its files and return the same point;
// nullopt without --resume. If the checkpoint is damaged and --resume names no step (latest, a run), the newest valid
// one of its run replaces it. A checkpoint of a newer program, or an unreadable one, is an error, not damage. Throws
// AgreedError(checkpoint) without a valid checkpoint.
std::optional<ResumePoint> find_resume_point(const CommandLine& line, RankGroup& group);

// A live run may prune a checkpoint while another process reads it. Calls `read`; if that throws removed_meanwhile()
// and `which` (--resume) names no step, calls it again, and `read` resolves --resume anew. Every rank must see the same
// error.
bool may_retry(const std::string& which, const Error& error);
template <class Read>
auto retry_if_removed(const std::string& which, const Read& read) {
  constexpr int kMostAttempts = 5;
  for (int attempt = 1;; ++attempt) {
    try {
      return read();
    } catch (const Error& error) {
      if (attempt == kMostAttempts || !may_retry(which, error)) throw;
    }
  }
}

// From the last "run" line of metrics.jsonl; empty: none.
struct LoggedRun {
  std::string checkpoint_dir, run_name;
};
LoggedRun last_logged_run(const std::string& log_folder);

std::filesystem::path canonical_path(const std::string& path); // the path need not exist

} // namespace gpt2
