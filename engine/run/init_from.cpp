#include "engine/run/init_from.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/options/run_plan.h"

namespace gpt2 {
namespace {

bool same_shape(const GPT2Config& a, const GPT2Config& b) {
  return a.layers == b.layers && a.heads == b.heads && a.channels == b.channels;
}

// By name where a known model has this shape.
void set_shape(const GPT2Config& config, Options& options) {
  for (const std::string& name : config_names()) {
    const GPT2Config known = config_by_name(name);
    if (!same_shape(known, config) || known.vocab != config.vocab) continue;
    options.model = name;
    return;
  }
  options.model = "gpt2";
  options.layers = config.layers, options.heads = config.heads, options.channels = config.channels;
}

} // namespace

std::shared_ptr<WeightSource> open_initial_weights(Options& options) {
  if (options.init_from.empty()) return nullptr;
  std::shared_ptr<WeightSource> weights = open_weights(options.init_from, options.hf_cache);
  const GPT2Config& theirs = weights->config();
  const bool asked = options.model != "auto" || options.layers > 0 || options.heads > 0 || options.channels > 0;
  if (!asked) set_shape(theirs, options);
  if (options.seq_len == 0) options.seq_len = std::min(theirs.seq_len, 1024);
  const GPT2Config ours = resolve_config(options, true);
  if (!same_shape(ours, theirs) || ours.vocab != theirs.vocab) {
    throw Error(
        ExitCode::usage,
        weights->path() + " has " + blocks_text(theirs) + " and " + std::to_string(theirs.vocab) +
            " tokens; the flags ask for " + blocks_text(ours) + " and " + std::to_string(ours.vocab),
        asked ? "leave out --model, --layers, --heads and --channels" : "only GPT-2's vocabulary can be trained");
  }
  weights->use_positions(options.seq_len);
  return weights;
}

} // namespace gpt2
