// The data of a run: the shards that were asked for, or the built-in sample.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/loader.h"
#include "engine/model/config.h"
#include "engine/train/options.h"

namespace gpt2 {

struct RunData {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation; // null: none was given
  bool built_in = false;
  std::optional<double> entropy;  // nats per token: the floor of the built-in sample's validation loss
  std::vector<std::string> notes; // one line for each fallback taken
};

// Throws Error(data) for shards that cannot be used.
RunData open_run_data(const Options& options, const GPT2Config& config);

} // namespace gpt2
