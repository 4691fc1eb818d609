#include "engine/model/linear_layer.h"

namespace gpt2 {

LinearLayer linear_layer(const GPT2Config& config, const GPT2Offsets& offsets, int layer, Fp8Site site) {
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
