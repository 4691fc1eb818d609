// Which checkpoints there are, which one a user means, and reading it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/format.h"

namespace gpt2 {

struct CheckpointInfo {
  std::string path;
  std::string run; // its folder below --checkpoint_dir; "": the checkpoint stands there directly
  int64_t step = 0;
  double val_loss = 0;   // kNoLoss: not evaluated
  int64_t val_step = -1; // at which it was measured, perhaps before `step`; -1: not known
  int ranks = 1;         // that wrote it
  int64_t bytes = 0;     // of all files
  std::string written;   // ISO time; "": damaged
  std::string precision, model;
  bool latest = false, best = false; // of its run
  bool is_damaged() const { return written.empty(); }
};

// All runs in these folders, the one that saved last at the end; within a run by step.
std::vector<CheckpointInfo> list_checkpoints(const std::vector<std::string>& checkpoint_dirs);
// The paths of those in one folder, unread: by step.
std::vector<std::string> checkpoints_in(const std::string& run_folder);
// Those of one run, or of any folder that holds checkpoints.
std::vector<CheckpointInfo> list_run(const std::string& run_folder);

inline constexpr const char* kIfNoneToResume =
    "start a new run without --resume, or check --checkpoint_dir and --run_name";

// What --resume says: "latest", "best", a step number, a path, or a path below one of `checkpoint_dirs`, each of which
// may end in a step number. Without a path it means `run`; with "" the run that saved last, and for "best" all runs.
// Where several folders have what is meant, that of the run that saved last. Throws Error(checkpoint) with what is
// there as a hint, and `if_none` where nothing is.
std::string find_checkpoint(const std::vector<std::string>& checkpoint_dirs, const std::string& run,
                            const std::string& which, const std::string& if_none = kIfNoneToResume);

// "DIR/latest" for "DIR/latest.pt" and "DIR/best" for "DIR/best_model.pt", as PyTorch trainers name their files;
// without a folder checkpoints, "checkpoints/latest.pt" is "latest". Any other text is returned as it is.
std::string marker_of_file(const std::string& which);

// The highest step of a run's folder, damaged or not; "" if there is none. The run's marker may lag behind it after a
// kill. Opens no checkpoint.
std::string latest_in(const std::string& run_folder);

int64_t bytes_of(const std::string& checkpoint); // of all its files

// The --checkpoint_dir of a checkpoint of this run, wherever it stands.
std::string checkpoint_dir_of(const std::string& checkpoint, const std::string& run);

// One checkpoint, by the path that the functions above answer. Where it is damaged, the error's hint is the newest
// older one beside it that is valid.
TrainState load_checkpoint(const std::string& checkpoint, StatefulModel& model);
TrainState read_checkpoint(const std::string& checkpoint); // without the model

} // namespace gpt2
