// The data of a planned run, which may not be there yet.
#pragma once

#include "engine/run/session.h"

namespace gpt2 {

// open_run_data(); if --dataset is one that bin/prepare_data downloads and it is not there, shards of its known size
// that cannot be read, and a note.
RunData open_planned_data(const Options& options, const GPT2Config& config);

} // namespace gpt2
