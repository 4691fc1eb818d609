// Names of checkpoints in a --checkpoint_dir (docs/checkpoints.md).
//
//   checkpoints_fp8/RUN/step_00001000/   one checkpoint: engine/checkpoint/format.h
//   checkpoints_fp8/RUN/latest, best     text files that name one of the run's: "step_00001000"
//   checkpoints_fp8/latest, best         the newest of the run that saved last, the best of all runs:
//                                        "RUN/step_00001000"
//   checkpoints_bf16/..., checkpoints_fp32/...   the same, by default, for runs in BF16 and FP32
//
// Checkpoints directly in a --checkpoint_dir belong to a run without a name, so a run's folder can be a
// --checkpoint_dir.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model.h"

namespace gpt2 {

inline constexpr const char *kLatest = "latest", *kBest = "best";

std::string default_checkpoint_dir(Precision precision);   // the default of --checkpoint_dir
const std::vector<std::string>& default_checkpoint_dirs(); // all; earlier versions saved FP32 runs in _fp8

std::string step_folder_name(int64_t step);          // "step_00001000"
int64_t step_of(const std::string& checkpoint);      // of a path or a name; -1: not a step folder
bool is_complete(const std::string& checkpoint);     // it has state.h5 or manifest.json
std::string without_slashes(std::string path);       // at the end
bool is_reserved_name(std::string_view folder_name); // not allowed for a run: latest, best, step_N
bool is_number(std::string_view text);               // digits only

// The checkpoint that the file `latest` or `best` in a folder names; "" if none.
std::string follow_marker(const std::string& folder, const std::string& marker);

} // namespace gpt2
