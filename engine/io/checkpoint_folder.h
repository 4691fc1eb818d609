// How a run saves: one folder a step, written by all ranks under a temporary name and renamed, so that a name that
// exists is whole (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <string>

#include "engine/dist/rank_group.h"
#include "engine/io/checkpoint_format.h"

namespace gpt2 {

class CheckpointFolder {
 public:
  CheckpointFolder(const std::string& checkpoint_dir, const std::string& run);

  const std::string& path() const { return folder_; } // CHECKPOINT_DIR/RUN

  // Every rank calls it, each with its own share of the model; the checkpoint's path. Throws the same Error on all of
  // them, Error(disk) where it cannot be written; the old checkpoints are untouched then.
  std::string save(StatefulModel& model, const TrainState& state, bool is_best, RankGroup& group);

  // At start, not after the first thousand steps: is there a folder to write to, and room for one checkpoint of a model
  // with so many parameters? Throws Error(disk).
  void check_writable(int64_t parameters) const;

 private:
  void show_in_root(const char* marker) const;

  std::string root_, run_, folder_;
};

} // namespace gpt2
