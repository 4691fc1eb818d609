#pragma once

#include <optional>
#include <string>

#include "engine/options/options.h"

namespace gpt2 {

// "./train_gpt2_fp8 --resume checkpoints_fp8/RUN"; ends with "--max_lr 3e-4" to resume at half the rate.
// Includes the launcher with the current number of ranks.
std::string resume_command(const std::string& checkpoint, const Options& options = {},
                           std::optional<double> max_lr = std::nullopt);

} // namespace gpt2
