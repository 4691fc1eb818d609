// --init_from: a run that starts from existing weights.
#pragma once

#include <memory>
#include <vector>

#include "engine/options/options.h"
#include "engine/pretrained/weight_source.h"

namespace gpt2 {

// Opens the weights of --init_from and, unless the flags give a shape, sets the model's shape in `options`. Null
// without
// --init_from. Throws Error(checkpoint) without such weights, Error(usage) if the flags give another shape.
std::shared_ptr<WeightSource> open_initial_weights(Options& options);

} // namespace gpt2
