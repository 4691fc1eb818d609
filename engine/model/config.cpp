#include "engine/model/config.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/nearest_name.h"
#include "engine/base/parse_number.h"

namespace gpt2 {
namespace {

// nano: the LM head (50,304 rows for every model) is nine tenths of its work, so it is narrow rather than shallow.
const GPT2Config kNamedConfigs[] = {
    {.name = "nano", .layers = 4, .heads = 4, .channels = 64, .seq_len = 256},
    {.name = "gpt2", .layers = 12, .heads = 12, .channels = 768},
    {.name = "gpt2-medium", .layers = 24, .heads = 16, .channels = 1024},
    {.name = "gpt2-large", .layers = 36, .heads = 20, .channels = 1280},
    {.name = "gpt2-xl", .layers = 48, .heads = 25, .channels = 1600},
};

constexpr int kHeadDim = 64;
constexpr int kDeepest = 200;              // a larger dN is a typing error
constexpr int64_t kNanoScale = 16'000'000; // parameters: smaller models use nano's settings

// llm.c's channels by depth: linear between the depths 0, 12, ..., 60 and beyond, rounded up to whole heads.
int channels_of_depth(int depth) {
  constexpr int kStep = 12, kChannels[] = {0, 768, 1024, 1280, 1600, 1920};
  const int before = std::min((depth - 1) / kStep, 4);
  const int rise = (kChannels[before + 1] - kChannels[before]) * (depth - before * kStep);
  const int channels = kChannels[before] + (rise + kStep - 1) / kStep;
  return (channels + kHeadDim - 1) / kHeadDim * kHeadDim;
}

// N of "dN"; 0 for any other name.
int depth_of(const std::string& name) {
  const int depth = name.starts_with('d') && name.size() <= 4 ? parse_number<int>(name.substr(1)).value_or(0) : 0;
  return depth > 0 && depth <= kDeepest ? depth : 0;
}

[[noreturn]] void refuse_shape(const std::string& what, const std::string& hint) {
  throw Error(ExitCode::usage, "invalid model shape: " + what, hint);
}

} // namespace

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const GPT2Config& config : kNamedConfigs) names.push_back(config.name);
  return names;
}

GPT2Config config_by_name(const std::string& name) {
  for (const GPT2Config& config : kNamedConfigs) {
    if (config.name == name) return config;
  }
  if (const int depth = depth_of(name)) {
    const int channels = channels_of_depth(depth);
    return {.name = name, .layers = depth, .heads = channels / kHeadDim, .channels = channels};
  }
  throw Error(ExitCode::usage, "--model: unknown model '" + name + "'",
              did_you_mean(name, config_names(),
                           "use one of " + listed(config_names()) + ", or dN for a depth of N layers (1 to " +
                               std::to_string(kDeepest) + ")"));
}

GPT2Config with_shape(const GPT2Config& base, int layers, int heads, int channels) {
  GPT2Config config = base;
  if (layers) config.layers = layers;
  if (channels) config.channels = channels;
  if (heads)
    config.heads = heads;
  else if (channels)
    config.heads = std::max(1, channels / base.head_dim());
  validate(config);
  if (config.layers != base.layers || config.heads != base.heads || config.channels != base.channels) {
    config.name = std::to_string(config.layers) + "x" + std::to_string(config.channels); // "6x384": layers x channels
  }
  return config;
}

void validate(const GPT2Config& config) {
  const auto text = [](int value) { return std::to_string(value); };
  if (config.layers < 1 || config.heads < 1 || config.channels < 1)
    refuse_shape(blocks_text(config), "use 1 or more for --layers, --heads and --channels");
  if (config.channels % config.heads != 0) {
    refuse_shape(text(config.channels) + " channels are not divisible by " + text(config.heads) + " heads",
                 "make --channels a multiple of --heads (GPT-2 has 64 channels per head)");
  }
  if (config.layers > kMaxModelLayers || config.channels > kMaxModelChannels) {
    refuse_shape(text(config.layers) + " layers of " + text(config.channels) + " channels",
                 "stay within " + text(kMaxModelLayers) + " layers and " + text(kMaxModelChannels) + " channels");
  }
  if (config.seq_len < 1 || config.seq_len > kMaxSequenceLength) {
    refuse_shape("sequences of " + text(config.seq_len) + " tokens",
                 "give --seq_len a number from 1 to " + text(kMaxSequenceLength));
  }
  if (config.vocab < 1 || config.vocab > kMaxVocabulary || config.padded_vocab < config.vocab ||
      config.padded_vocab > 2 * kMaxVocabulary) {
    refuse_shape("a vocabulary of " + text(config.vocab) + " tokens in " + text(config.padded_vocab) + " rows",
                 "use GPT-2's 50257 tokens in 50304 rows");
  }
}

std::string blocks_text(const GPT2Config& config) {
  return counted(config.layers, "layer") + ", " + counted(config.heads, "head") + ", " +
         counted(config.channels, "channel");
}

std::string shape_text(const GPT2Config& config) {
  return blocks_text(config) + ", sequences of " + std::to_string(config.seq_len);
}

int64_t parameter_count(const GPT2Config& config) {
  const int64_t C = config.channels;
  const int64_t block = 12 * C * C + 13 * C; // 4 matrices (3 + 1 + 4 + 4) C^2, their biases 9 C, two LayerNorms 4 C
  return (config.vocab + config.seq_len) * C + config.layers * block + 2 * C;
}

ModelDefaults defaults_for(const GPT2Config& config) {
  const int64_t parameters = parameter_count(config);
  if (parameters < kNanoScale) {
    // Tuned on the built-in sample: stories of 100 tokens suit sequences of 256, and many small steps beat few large
    // ones. At 6e-3 after this warm-up most seeds spike to a loss of 10 to 20 within 30 steps (docs/decisions.md); at
    // 3e-3 no loss of twenty seeds rose more than 0.12 above its running minimum (2026-11).
    return {.batch_size = 2,
            .target_batch_size = 2,
            .max_lr = 3e-3f,
            .muon_lr = 1.2e-2f,
            .muon_adamw_lr = 6e-3f,
            .warmup_steps = 20,
            .max_steps = 1200};
  }
  // Learning rates of the GPT-3 paper's table 2.1 for these sizes; 19,073 steps of 512 x 1024 tokens are 10B tokens.
  const float max_lr = parameters < 200'000'000     ? 6e-4f
                       : parameters < 500'000'000   ? 3e-4f
                       : parameters < 1'000'000'000 ? 2.5e-4f
                                                    : 2e-4f;
  return {.batch_size = 4,
          .target_batch_size = 512,
          .max_lr = max_lr,
          .muon_lr = 8 * max_lr, // 4.8e-3 and 2.4e-3 were best at 124M; larger models use the same factors
          .muon_adamw_lr = 4 * max_lr,
          .warmup_steps = 700,
          .max_steps = 19073};
}

} // namespace gpt2
