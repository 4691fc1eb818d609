// How a run saves: one folder a step, written by all ranks under a temporary name and renamed, so that a name that
// exists is whole (docs/checkpoints.md).
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

// What became of a save.
struct SaveResult {
  int64_t step = 0;
  std::string path;
  bool is_best = false;
  std::optional<Error> error = std::nullopt; // why there is no such checkpoint; the older ones are untouched then
};

class CheckpointFolder {
 public:
  // A save is followed by what `keep` says of older checkpoints, on a thread of rank 0.
  CheckpointFolder(const std::string& checkpoint_dir, const std::string& run, const KeepRule& keep = {});

  const std::string& path() const { return folder_; } // CHECKPOINT_DIR/RUN

  // ---- saving: every rank makes the same calls, between two steps ----
  // Begins a save, and returns when this rank's share of the model is copied: a thread writes it while training goes
  // on. One at a time: the one before must have been ended.
  void begin(StatefulModel& model, const TrainState& state, bool is_best, RankGroup& group);
  bool saving() const { return save_ != nullptr; }
  // Makes the save that was begun real, and says what became of it, once every rank has written its share; until then
  // nothing. Throws for lost ranks alone.
  std::optional<SaveResult> end_if_written(RankGroup& group);
  SaveResult end(RankGroup& group); // waits for that
  void drop(RankGroup& group);      // nothing of it stays

  // What that thread has found since the last call, one line each: little room for the next checkpoint, old ones that
  // cannot be removed.
  std::vector<std::string> take_warnings();

  // Both at once, and what follows a save too: nothing works on the folder any more. The checkpoint's path; throws the
  // same Error on all ranks.
  std::string save(StatefulModel& model, const TrainState& state, bool is_best, RankGroup& group);

  // At start, not after the first thousand steps: is there a folder to write to, and room for one checkpoint of a model
  // with so many parameters? Throws Error(disk).
  void check_writable(int64_t parameters) const;

 private:
  void start_cleaning();
  void end_cleaning();
  void mark(const std::string& name, bool is_best) const;
  void show_in_root(const char* marker) const;
  bool is_best_of_root() const;

  std::string root_, run_, folder_;
  KeepRule keep_;
  std::future<std::vector<std::string>> cleaning_; // rank 0's: ends before the next save begins
  std::vector<std::string> warnings_;              // of those that have ended
  std::unique_ptr<CheckpointSave> save_;           // the one under way
  SaveResult result_;                              // what it will be
  int64_t bytes_ = 0;                              // room that a save asks for
};

} // namespace gpt2
