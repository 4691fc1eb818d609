// Saving of a run: one folder per step, written by all ranks under a temporary name and renamed when complete
// (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/format.h"
#include "engine/checkpoint/pruning.h"
#include "engine/checkpoint/save.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

struct SaveResult {
  int64_t step = 0;
  std::string path;
  bool is_best = false;
  std::optional<Error> error = std::nullopt; // the save failed; older checkpoints are untouched
};

class CheckpointFolder {
 public:
  // After each save a thread of rank 0 removes older checkpoints by `keep`.
  CheckpointFolder(const std::string& checkpoint_dir, const std::string& run, const KeepRule& keep = {});

  const std::string& path() const { return folder_; } // CHECKPOINT_DIR/RUN

  // ---- saving: every rank makes the same calls, between two steps ----
  // Copies this rank's share of the model and returns; a thread writes the copy while training continues. One save at a
  // time: call end() before the next begin().
  void begin(StatefulModel& model, const TrainState& state, bool is_best, RankGroup& group);
  bool saving() const { return save_ != nullptr; }
  // Commits the save once every rank has written its share; nullopt until then. Throws only for lost ranks.
  std::optional<SaveResult> end_if_written(RankGroup& group);
  SaveResult end(RankGroup& group); // waits, then commits
  void drop(RankGroup& group);      // discards the save

  // Warnings of the cleanup thread since the last call, one line each: low disk space, a checkpoint it cannot remove.
  std::vector<std::string> take_warnings();

  // begin(), end() and the cleanup, synchronously. Returns the checkpoint's path; throws the same Error on all ranks.
  std::string save(StatefulModel& model, const TrainState& state, bool is_best, RankGroup& group);

  // Before training: the folder is writable and has space for one checkpoint. Throws Error(disk).
  void check_writable(int64_t parameters) const;

 private:
  void end_cleaning();
  void mark(const std::string& name, bool is_best) const;
  void show_in_root(const char* marker) const;
  bool is_best_of_root() const;

  std::string root_, run_, folder_;
  KeepRule keep_;
  std::future<std::vector<std::string>> cleaning_; // on rank 0; ends before the next save begins
  std::vector<std::string> warnings_;              // of cleanups that have ended
  std::unique_ptr<CheckpointSave> save_;           // in progress
  SaveResult result_;                              // of save_
  int64_t bytes_ = 0;                              // upper bound of one checkpoint's size
};

} // namespace gpt2
