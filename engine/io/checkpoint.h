// Checkpoints: one folder a step, written under a temporary name and renamed, so a name that exists is whole.
//
//   checkpoints_fp8/step_00001000/state.h5      parameters, moments, guard, FP8 state: what a StateSnapshot writes
//                                               under /model, and TrainState under /train
//   checkpoints_fp8/step_00001000/options.toml  the options of the run, for people
//   checkpoints_fp8/latest, best                text files that name a folder; replaced atomically
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/model.h"

namespace gpt2 {

// What the loop itself needs to go on.
struct TrainState {
  int64_t step = 0;            // optimizer steps done (skipped ones count)
  int64_t loader_position = 0; // samples consumed
  uint64_t seed = 0;           // of the data order and initialisation
  double best_val_loss = 1e30;
  double last_val_loss = 1e30;
  int64_t last_val_step = -1; // at which it was measured; -1: never, or not known
  int64_t tokens = 0;         // trained on so far
  std::string run_name;
  std::string options_toml; // --print_config of the run
  std::string precision;    // "fp8", "bf16", "fp32"
};

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

// Reads the header first, so that a checkpoint of another model is refused before anything is changed.
TrainState load_checkpoint(const std::string& path, StatefulModel& model);
TrainState read_train_state(const std::string& path);

} // namespace gpt2
