// Retention of one run's checkpoints, and the disk space for the next. Other runs' folders are never touched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2 {

struct KeepRule {
  int64_t newest = 0;           // --keep_checkpoints: kept; 0: all
  int64_t every = 0;            // --keep_every: multiples of it are always kept; 0: none
  int64_t due_every = 0;        // --checkpoint_freq: multiples of it were not saved as best only
  int64_t before_cooldown = -1; // always kept: a longer wsd run starts from it; -1: none
};

struct KeptStep {
  int64_t step = 0;
  bool marked = false;    // latest or best of the run
  bool only_best = false; // saved only because it was the best so far
};

// The steps to remove, of a run's checkpoints in ascending order. Marked ones and the newest always stay; a former best
// that was saved only as such is removed.
std::vector<int64_t> steps_to_remove(const std::vector<KeptStep>& steps, const KeepRule& rule);

struct Pruned {
  std::vector<std::string> removed; // paths
  std::string why_not;              // one line if some could not be removed
};

// Verifies the newest checkpoint on the disk, then removes steps_to_remove(), oldest first. Renames each folder before
// deleting its files, so that no reader finds half a checkpoint. `dry_run`: lists only. A failed removal is reported in
// why_not; throws only if a marker cannot be read.
Pruned prune(const std::string& run_folder, const KeepRule& rule, bool dry_run = false);

// One line if free_bytes < bytes; "" otherwise.
std::string disk_space_warning(const std::string& run_folder, int64_t bytes, int64_t free_bytes);

} // namespace gpt2
