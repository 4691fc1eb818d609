#include "engine/train/run_data.h"

#include "engine/data/sample_text.h"
#include "engine/data/shard.h"

namespace gpt2 {
namespace {

constexpr int64_t kTrainStories = 40000;
constexpr int64_t kValidationStories = 2000;
constexpr uint64_t kTrainStorySeed = 1, kValidationStorySeed = 2; // not --seed: the sample is always the same text

std::shared_ptr<const Dataset> open_shards(const std::string& patterns, const GPT2Config& config) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  for (const std::string& path : expand_globs(patterns)) shards.push_back(open_shard(path));
  return std::make_shared<Dataset>(std::move(shards), config.seq_len, config.vocab);
}

std::shared_ptr<const Dataset> in_memory(const std::string& name, std::vector<uint16_t> tokens,
                                         const GPT2Config& config) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  shards.push_back(memory_shard(name, std::move(tokens)));
  return std::make_shared<Dataset>(std::move(shards), config.seq_len, config.vocab);
}

RunData built_in_sample(const GPT2Config& config) {
  RunData data;
  data.built_in = true;
  data.train = in_memory("built-in sample", sample_tokens(kTrainStorySeed, kTrainStories).tokens, config);
  SampleTokens validation = sample_tokens(kValidationStorySeed, kValidationStories);
  data.entropy = validation.entropy_per_token;
  data.validation = in_memory("built-in sample, validation", std::move(validation.tokens), config);
  data.notes.push_back(
      "no --train_data: training on the built-in sample, simple stories from a small grammar; "
      "for FineWeb-Edu see data/README.md and bin/tokenize");
  return data;
}

} // namespace

RunData open_run_data(const Options& options, const GPT2Config& config) {
  if (options.train_data.empty()) return built_in_sample(config);
  RunData data;
  data.train = open_shards(options.train_data, config);
  if (!options.val_data.empty()) {
    data.validation = open_shards(options.val_data, config);
  } else if (options.eval_freq > 0) {
    data.notes.push_back("no --val_data: training without evaluation");
  }
  return data;
}

} // namespace gpt2
