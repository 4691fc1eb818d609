// A linear layer of GPT-2 for both engines: shape, parameter offsets, and name in the FP8 recipe.
#pragma once

#include <cstdint>

#include "engine/model/config.h"
#include "engine/model/fp8_recipe.h"
#include "engine/model/parameters.h"

namespace gpt2 {

// out = in weight^T + bias
struct LinearLayer {
  static constexpr int64_t kNoBias = -1;

  int layer;      // the block; unused for the LM head
  Fp8Site site;   // with `layer`: the name of its activation, weight and gradient in the FP8 recipe
  int C, OC;      // inputs, outputs
  int64_t weight; // offset of (OC, C) in the parameter table's layout
  int64_t bias;   // offset of (OC), or kNoBias
};

LinearLayer linear_layer(const GPT2Config& config, const GPT2Offsets& offsets, int layer, Fp8Site site);

} // namespace gpt2
