// Lists checkpoints, finds the one that --resume names, and reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/format.h"

namespace gpt2 {

struct CheckpointInfo : StateHeader {
  std::string path = {};
  std::string run = {};              // its folder below --checkpoint_dir; "": directly in --checkpoint_dir
  int64_t bytes = 0;                 // of all files
  bool latest = false, best = false; // of its run
  bool is_damaged() const { return written.empty(); }
};

// All runs in these folders, the one that saved last at the end; within a run in order of steps.
std::vector<CheckpointInfo> list_checkpoints(const std::vector<std::string>& checkpoint_dirs);
// Paths in one run folder, in order of steps. Opens none.
std::vector<std::string> checkpoints_in(const std::string& run_folder);
std::vector<CheckpointInfo> list_run(const std::string& run_folder);

inline constexpr const char* kIfNoneToResume =
    "start a new run without --resume, or check --checkpoint_dir and --run_name";

// `which` (--resume): "latest", "best", a step number, a path, or a path below one of `checkpoint_dirs`; a path may end
// in a step number. Without a path, searches `run`, or if that is "" the run that saved last ("best": all runs). If
// several folders match, takes the run that saved last. Throws Error(checkpoint); its hint lists the existing
// checkpoints, or is `if_none` if there are none.
std::string find_checkpoint(const std::vector<std::string>& checkpoint_dirs, const std::string& run,
                            const std::string& which, const std::string& if_none = kIfNoneToResume);

// "DIR/latest" for "DIR/latest.pt" and "DIR/best" for "DIR/best_model.pt", as PyTorch trainers name their files;
// without a folder checkpoints, "checkpoints/latest.pt" is "latest". Any other text is returned as it is.
std::string marker_of_file(const std::string& which);

// The highest step of a run's folder, damaged or not; "" if none. After a kill the marker `latest` may be older. Opens
// no checkpoint.
std::string latest_in(const std::string& run_folder);

int64_t bytes_of(const std::string& checkpoint); // of all its files

// The --checkpoint_dir that holds this checkpoint of `run`.
std::string checkpoint_dir_of(const std::string& checkpoint, const std::string& run);

// By a path from the functions above. If the checkpoint is damaged, the error's hint names the newest valid older one
// of its run.
TrainState load_checkpoint(const std::string& checkpoint, StatefulModel& model);
TrainState read_checkpoint(const std::string& checkpoint); // the loop's state only

} // namespace gpt2
