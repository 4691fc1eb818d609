// Checkpoints: one folder a step, written under a temporary name and renamed, so a name that exists is whole.
//
//   checkpoints_fp8/step_00001000/state.h5      checkpoint_format.h
//   checkpoints_fp8/step_00001000/options.toml  the options of the run, for people
//   checkpoints_fp8/latest, best                text files that name a folder; replaced atomically
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/io/checkpoint_format.h"

namespace gpt2 {

struct CheckpointInfo {
  std::string path;
  int64_t step = 0;
  double val_loss = 0;   // 1e30: not evaluated
  int64_t val_step = -1; // at which it was measured, perhaps before `step`; -1: not known
  int64_t bytes = 0;
  std::string written; // ISO time
  std::string precision;
  bool latest = false, best = false;
};

class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string root);

  // Throws Error(disk) if it cannot be written; the old checkpoints are untouched then.
  std::string save(StatefulModel& model, const TrainState& state, bool is_best);

  // "latest", "best", a step number or a path. Throws Error(checkpoint) with what is there as a hint.
  std::string resolve(const std::string& which) const;
  std::vector<CheckpointInfo> list() const; // by step

  // At start, not after the first thousand steps: is there a folder to write to, and room for one checkpoint of a model
  // with so many parameters? Throws Error(disk).
  void check_writable(int64_t parameters) const;

 private:
  std::string root_;
};

// One checkpoint, by its folder as resolve() and list() name it. Where it is damaged, the error's hint is the newest
// older one beside it that can be read.
TrainState load_checkpoint(const std::string& folder, StatefulModel& model);
TrainState read_checkpoint(const std::string& folder); // without the model

} // namespace gpt2
