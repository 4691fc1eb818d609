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

inline LinearLayer linear_layer(const GPT2Config& config, const GPT2Offsets& offsets, int layer, Fp8Site site) {
  const int C = config.channels;
  const auto make = [&](int in, int out, int64_t weight, int64_t bias) {
    return LinearLayer{.layer = layer, .site = site, .C = in, .OC = out, .weight = weight, .bias = bias};
  };
  if (site == Fp8Site::lm_head) return make(C, config.padded_vocab, offsets.wte, LinearLayer::kNoBias);
  const BlockOffsets& at = offsets.blocks[static_cast<size_t>(layer)];
  if (site == Fp8Site::qkv) return make(C, 3 * C, at.qkv_weight, at.qkv_bias);
  if (site == Fp8Site::proj) return make(C, C, at.proj_weight, at.proj_bias);
  if (site == Fp8Site::fc) return make(C, 4 * C, at.fc_weight, at.fc_bias);
  return make(4 * C, C, at.fcproj_weight, at.fcproj_bias);
}

} // namespace gpt2
