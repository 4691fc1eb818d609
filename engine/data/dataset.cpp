#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/data/loader.h"
#include "engine/system/content_hash.h"

namespace gpt2 {

namespace {

// Neighbours share one token: the last target of a sequence is the first input of the next.
int64_t sequences_in(const TokenSource& shard, int seq_len) {
  return std::max<int64_t>(shard.tokens() - 1, 0) / seq_len;
}

[[noreturn]] void throw_too_short(const std::vector<std::unique_ptr<TokenSource>>& shards, int seq_len) {
  const auto longest = std::max_element(shards.begin(), shards.end(),
                                        [](const auto& a, const auto& b) { return a->tokens() < b->tokens(); });
  if (longest == shards.end()) throw Error(ExitCode::data, "no data: the list of shards is empty");
  throw Error(ExitCode::data,
              "no shard holds one sequence of " + std::to_string(seq_len) + " + 1 tokens; the longest, " +
                  (*longest)->path() + ", has " + std::to_string((*longest)->tokens()),
              "give longer shards, or a model of shorter sequences (--seq_len of the trainer)");
}

[[noreturn]] void throw_bad_token(const BadToken& bad) {
  throw Error(ExitCode::data,
              bad.shard + ": token " + std::to_string(bad.position) + " is " + std::to_string(bad.token) +
                  ", beyond the vocabulary",
              "use shards made with GPT-2's tokenizer; if these were, make or copy this one again");
}

} // namespace

Dataset::Dataset(std::vector<std::unique_ptr<TokenSource>> shards, int seq_len, int vocab)
    : shards_(std::move(shards)), seq_len_(seq_len), vocab_(vocab) {
  if (seq_len < 1) throw Error(ExitCode::usage, "--seq_len must be at least 1, not " + std::to_string(seq_len));
  int64_t total = 0;
  for (const auto& shard : shards_) {
    first_sequence_.push_back(total);
    total += sequences_in(*shard, seq_len);
  }
  first_sequence_.push_back(total);
  if (total == 0) throw_too_short(shards_, seq_len);
}

int64_t Dataset::sequences() const { return first_sequence_.back(); }
int Dataset::shards() const { return static_cast<int>(shards_.size()); }
int Dataset::seq_len() const { return seq_len_; }

int64_t Dataset::tokens() const {
  int64_t total = 0;
  for (const auto& shard : shards_) total += shard->tokens();
  return total;
}

std::optional<BadToken> Dataset::read(int64_t sequence, int32_t* inputs, int32_t* targets) const {
  const auto after = std::upper_bound(first_sequence_.begin(), first_sequence_.end(), sequence);
  const auto index = static_cast<size_t>(after - first_sequence_.begin()) - 1;
  const TokenSource& shard = *shards_[index];
  const int64_t position = (sequence - first_sequence_[index]) * seq_len_;

  std::vector<uint16_t> tokens(static_cast<size_t>(seq_len_) + 1);
  shard.read(position, tokens);
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [this](uint16_t token) { return token >= vocab_; });
  if (bad != tokens.end()) {
    std::fill_n(inputs, seq_len_, 0);
    std::fill_n(targets, seq_len_, kIgnoredTarget);
    return BadToken{shard.path(), position + (bad - tokens.begin()), *bad};
  }
  std::copy(tokens.begin(), tokens.end() - 1, inputs);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
  return std::nullopt;
}

HostBatch read_sequences(const Dataset& dataset, int64_t first, int64_t end, int batch_size) {
  const auto seq_len = static_cast<size_t>(dataset.seq_len()), tokens = static_cast<size_t>(batch_size) * seq_len;
  HostBatch batch{batch_size, dataset.seq_len(), std::vector<int32_t>(tokens, 0),
                  std::vector<int32_t>(tokens, kIgnoredTarget)};
  for (int64_t row = 0; row < std::min<int64_t>(batch_size, end - first); ++row) {
    const size_t at = static_cast<size_t>(row) * seq_len;
    if (const auto bad = dataset.read(first + row, &batch.inputs[at], &batch.targets[at])) throw_bad_token(*bad);
  }
  return batch;
}

std::vector<HostBatch> validation_batches(const Dataset& dataset, int64_t sequences, int batch_size, int rank,
                                          int ranks) {
  const int64_t count = std::min(sequences, dataset.sequences());
  const int64_t per_round = static_cast<int64_t>(batch_size) * ranks;
  std::vector<HostBatch> batches;
  for (int64_t round_start = 0; round_start < count; round_start += per_round)
    batches.push_back(
        read_sequences(dataset, round_start + static_cast<int64_t>(rank) * batch_size, count, batch_size));
  return batches;
}

std::string Dataset::fingerprint() const {
  constexpr int64_t kSampled = 64; // sequences: a few pages of each file
  std::vector<int32_t> tokens(2 * static_cast<size_t>(seq_len_));
  uint64_t hash = 0;
  const int64_t count = std::min(kSampled, sequences());
  for (int64_t i = 0; i < count; ++i) {
    read(i * sequences() / count, tokens.data(), tokens.data() + seq_len_);
    hash = xxh64(std::as_bytes(std::span(tokens)), hash);
  }
  return formatted("%d shards, %lld tokens, hash %016llx", shards(), static_cast<long long>(this->tokens()),
                   static_cast<unsigned long long>(hash));
}

} // namespace gpt2
