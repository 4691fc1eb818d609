// --init_from: a run that begins with weights that are there already.
#pragma once

#include <memory>
#include <vector>

#include "engine/options/options.h"
#include "engine/pretrained/weight_source.h"

namespace gpt2 {

// The weights that --init_from names, and the options of a model that can take them: its shape, where nothing else was
// asked for. Null without --init_from. Throws Error(checkpoint) if there are none, Error(usage) if another shape was
// asked for.
std::shared_ptr<WeightSource> open_initial_weights(Options& options);

} // namespace gpt2
