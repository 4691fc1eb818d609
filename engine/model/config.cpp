// The named shapes of GPT-2 and what follows from a shape alone.
#include "engine/model/config.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/nearest_name.h"

namespace gpt2 {
namespace {

struct NamedShape {
  const char* name;
  int layers, heads, channels, seq_len;
};

// nano: the LM head (50,304 rows for every model) is nine tenths of its work, so it is narrow rather than shallow.
constexpr std::array<NamedShape, 5> kNamedShapes = {{
    {"nano", 4, 4, 64, 256},
    {"gpt2", 12, 12, 768, 1024},
    {"gpt2-medium", 24, 16, 1024, 1024},
    {"gpt2-large", 36, 20, 1280, 1024},
    {"gpt2-xl", 48, 25, 1600, 1024},
}};

constexpr int kHeadDim = 64;
constexpr int kDeepest = 200;              // a larger dN is a typing error
constexpr int64_t kNanoScale = 16'000'000; // parameters: smaller models use nano's settings

// llm.c's channels by depth: linear between its depths, rounded up to whole heads.
int channels_of_depth(int depth) {
  struct Point {
    int depth, channels;
  };
  constexpr std::array<Point, 6> known = {{{0, 0}, {12, 768}, {24, 1024}, {36, 1280}, {48, 1600}, {60, 1920}}};
  size_t next = 1;
  while (next + 1 < known.size() && depth > known[next].depth) ++next;
  const Point a = known[next - 1], b = known[next];
  const int rise = (b.channels - a.channels) * (depth - a.depth), run = b.depth - a.depth;
  const int channels = a.channels + (rise + run - 1) / run;
  return (channels + kHeadDim - 1) / kHeadDim * kHeadDim;
}

// N of "dN"; 0 for any other name.
int depth_of(const std::string& name) {
  const bool digits = name.size() >= 2 && name.size() <= 4 && name[0] == 'd' &&
                      std::all_of(name.begin() + 1, name.end(), [](char c) { return c >= '0' && c <= '9'; });
  const int depth = digits ? std::atoi(name.c_str() + 1) : 0;
  return depth <= kDeepest ? depth : 0;
}

[[noreturn]] void refuse_shape(const std::string& what, const std::string& hint) {
  throw Error(ExitCode::usage, "invalid model shape: " + what, hint);
}

} // namespace

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  std::transform(kNamedShapes.begin(), kNamedShapes.end(), std::back_inserter(names),
                 [](const NamedShape& shape) { return shape.name; });
  return names;
}

GPT2Config config_by_name(const std::string& name) {
  GPT2Config config;
  config.name = name;
  for (const NamedShape& shape : kNamedShapes) {
    if (name != shape.name) continue;
    config.layers = shape.layers;
    config.heads = shape.heads;
    config.channels = shape.channels;
    config.seq_len = shape.seq_len;
    return config;
  }
  if (const int depth = depth_of(name)) {
    config.layers = depth;
    config.channels = channels_of_depth(depth);
    config.heads = config.channels / kHeadDim;
    return config;
  }

  std::string all;
  for (const std::string& known : config_names()) all += known + ", ";
  const std::string nearest = nearest_name(name, config_names());
  throw Error(ExitCode::usage, "--model: unknown model '" + name + "'",
              !nearest.empty()
                  ? "did you mean '" + nearest + "'?"
                  : "use one of " + all + "or dN for a depth of N layers (1 to " + std::to_string(kDeepest) + ")");
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
  if (config.layers < 1) refuse_shape(text(config.layers) + " layers", "give --layers a number from 1 up");
  if (config.heads < 1) refuse_shape(text(config.heads) + " heads", "give --heads a number from 1 up");
  if (config.channels < 1) refuse_shape(text(config.channels) + " channels", "give --channels a number from 1 up");
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
  if (config.vocab < 1 || config.padded_vocab < config.vocab) {
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

double flops_per_token(const GPT2Config& config, int seq_len) {
  const double multiplied = static_cast<double>(parameter_count(config)) - 1.0 * config.seq_len * config.channels;
  return 6.0 * multiplied + 12.0 * config.layers * config.channels * seq_len;
}

ModelDefaults defaults_for(const GPT2Config& config) {
  const int64_t parameters = parameter_count(config);
  if (parameters < kNanoScale) {
    // Tuned on the built-in sample: stories of 100 tokens suit sequences of 256, and many small steps beat few large
    // ones. At 6e-3 after this warm-up most seeds spike to a loss of 10 to 20 within 30 steps (docs/decisions.md); at
    // 3e-3 no loss of twenty seeds rose more than 0.12 above its running minimum (2026-11).
    return {.seq_len = config.seq_len,
            .batch_size = 2,
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
  return {.seq_len = config.seq_len,
          .batch_size = 4,
          .target_batch_size = 512,
          .max_lr = max_lr,
          .muon_lr = 8 * max_lr, // 4.8e-3 and 2.4e-3 were best at 124M; larger models use the same factors
          .muon_adamw_lr = 4 * max_lr,
          .warmup_steps = 700,
          .max_steps = 19073};
}

} // namespace gpt2
