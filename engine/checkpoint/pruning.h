// Which checkpoints of a run stay on the disk, and whether there is room for the next. Never those of another run: a
// rule sees one run's folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2 {

struct KeepRule {
  int64_t newest = 0;    // --keep_checkpoints: this many stay; 0: all
  int64_t every = 0;     // --keep_every, milestones: multiples of it stay for ever; 0: none do
  int64_t due_every = 0; // --checkpoint_freq: a multiple of it was not saved for being the best alone
};

struct KeptStep {
  int64_t step = 0;
  bool marked = false;    // latest or best of the run
  bool only_best = false; // saved for having been the best so far, and for nothing else
};

// The steps that a rule does without, of a run's checkpoints by step. What is marked and the newest one always stay; a
// former best that was saved for that alone goes.
std::vector<int64_t> steps_to_remove(const std::vector<KeptStep>& steps, const KeepRule& rule);

struct Pruned {
  std::vector<std::string> removed; // paths that were
  std::string why_not; // one line where something had to stay: the newest is not valid, or the disk says no
};

// Removes what the rule does without, oldest first, once the newest checkpoint has been verified on the disk. Each
// loses its name before its files, so that none is ever found half. With `dry_run` it only answers what it would do.
// What cannot be removed costs only disk space, and is told; throws only where a marker cannot be read.
Pruned prune(const std::string& run_folder, const KeepRule& rule, bool dry_run = false);

// One line if a disk with so many free bytes has no room for another checkpoint of this size; "" if it has.
std::string little_room(const std::string& run_folder, int64_t bytes, int64_t free_bytes);

} // namespace gpt2
