// Names of checkpoints in a --checkpoint_dir (docs/checkpoints.md).
//
//   checkpoints_fp8/RUN/step_00001000/   one checkpoint: its files are in checkpoint_format.h
//   checkpoints_fp8/RUN/latest, best     text files that name one of the run's: "step_00001000"
//   checkpoints_fp8/latest, best         of the run that saved last, and of all runs: "RUN/step_00001000"
//   checkpoints_bf16/...                 the same, by default, for runs in BF16
//
// A run folder stands for itself: checkpoints directly in a --checkpoint_dir are those of a run without a name, as the
// first programs wrote them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model.h"

namespace gpt2 {

inline constexpr const char *kLatest = "latest", *kBest = "best";

// Without --checkpoint_dir. FP32 has no third folder: it is what FP8 is emulated with on the CPU, and compared with.
std::string default_checkpoint_dir(Precision precision);
const std::vector<std::string>& default_checkpoint_dirs(); // all of them

std::string step_folder_name(int64_t step);          // "step_00001000"
int64_t step_of(const std::string& checkpoint);      // of a path or a name; -1: not a checkpoint's
bool is_complete(const std::string& checkpoint);     // has been once: without state.h5, its manifest says so
std::string without_slashes(std::string path);       // at its end
bool is_reserved_name(std::string_view folder_name); // a run's folder cannot have it: latest, best, step_N
bool is_number(std::string_view text);               // of digits alone, as a step is given

// The checkpoint that the marker `latest` or `best` in a folder names; "" if there is none.
std::string follow_marker(const std::string& folder, const std::string& marker);

} // namespace gpt2
