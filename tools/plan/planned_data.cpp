#include "tools/plan/planned_data.h"

#include <stdexcept>

#include "engine/base/log.h"
#include "engine/data/dataset_folder.h"
#include "tools/prepare_data/known_datasets.h"

namespace gpt2 {
namespace {

constexpr int64_t kShardTokens = 100'000'000; // the default of bin/prepare_data

class PlannedShard : public TokenSource {
 public:
  PlannedShard(std::string path, int64_t tokens) : path_(std::move(path)), tokens_(tokens) {}
  int64_t tokens() const override { return tokens_; }
  const std::string& path() const override { return path_; }
  void read(int64_t, std::span<uint16_t>) const override { throw std::logic_error("a planned shard has no tokens"); }

 private:
  const std::string path_;
  const int64_t tokens_;
};

std::shared_ptr<const Dataset> planned_shards(const std::string& path, int64_t tokens, const GPT2Config& config) {
  std::vector<std::unique_ptr<TokenSource>> shards;
  for (int64_t left = tokens; left > 0; left -= kShardTokens)
    shards.push_back(std::make_unique<PlannedShard>(path, std::min(left, kShardTokens)));
  return std::make_shared<Dataset>(std::move(shards), config.seq_len, config.vocab);
}

} // namespace

RunData open_planned_data(const Options& options, const GPT2Config& config) {
  const KnownDataset* const known = options.train_data.empty() ? find_known_dataset(options.dataset) : nullptr;
  const std::string folder = options.data_dir + "/" + options.dataset;
  if (!known || !options.val_data.empty() || !existing_shards(folder, "train", "bin").empty() ||
      !existing_shards(folder, "train", "h5").empty())
    return open_run_data(options, config);
  const auto val_tokens = static_cast<int64_t>(static_cast<double>(known->tokens) * known->val_fraction);
  RunData data;
  data.train_from = data.validation_from = options.dataset;
  data.train = planned_shards(folder, known->tokens - val_tokens, config);
  data.validation = planned_shards(folder, val_tokens, config);
  data.notes.push_back(folder + " is not there: planned with its known size, " +
                       format_count(static_cast<double>(known->tokens)) +
                       " tokens; make it with bin/prepare_data --dataset " + options.dataset);
  return data;
}

} // namespace gpt2
