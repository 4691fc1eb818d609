#include "engine/data/loader.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/rng.h"
#include "engine/system/content_hash.h"

namespace gpt2 {
namespace {

constexpr int kRounds = 6; // of the Feistel network

// Neighbors share one token: the last target of a sequence is the first input of the next.
int64_t sequences_in(const TokenSource& shard, int seq_len) {
  return std::max<int64_t>(shard.tokens() - 1, 0) / seq_len;
}

[[noreturn]] void throw_too_short(const std::vector<std::unique_ptr<TokenSource>>& shards, int seq_len) {
  const auto longest = std::ranges::max_element(shards, {}, &TokenSource::tokens);
  if (longest == shards.end()) throw Error(ExitCode::data, "no data: the list of shards is empty");
  throw Error(
      ExitCode::data,
      "no shard holds one sequence of " + std::to_string(seq_len) + " + 1 tokens; the longest, " + (*longest)->path() +
          ", has " + std::to_string((*longest)->tokens()),
      "use a smaller --seq_len or more text; for validation shards, bin/prepare_data with a larger --val_fraction");
}

// One row per sequence; the rows after them have ignored targets.
HostBatch read_rows(const Dataset& dataset, const std::vector<int64_t>& sequences, int batch_size) {
  const auto seq_len = static_cast<size_t>(dataset.seq_len()), tokens = static_cast<size_t>(batch_size) * seq_len;
  HostBatch batch{batch_size, dataset.seq_len(), std::vector<int32_t>(tokens, 0),
                  std::vector<int32_t>(tokens, kIgnoredTarget)};
  for (size_t row = 0; row < sequences.size(); ++row) {
    const size_t at = row * seq_len;
    if (auto bad = dataset.read(sequences[row], &batch.inputs[at], &batch.targets[at]))
      batch.bad.push_back(std::move(*bad));
  }
  return batch;
}

} // namespace

// ---- the permutation ----

// The domain is the smallest 2^(2h) >= size: below 4 * size, so that a cycle walk takes under 4 steps on average.
Permutation::Permutation(uint64_t size, uint64_t seed) : size_(size), seed_(mix64(seed)) {
  const int bits = std::bit_width(size > 1 ? size - 1 : 1);
  half_bits_ = (bits + 1) / 2;
}

uint64_t Permutation::operator()(uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  // A Feistel network permutes the domain; walking its cycle until the index is below `size` permutes [0, size).
  do {
    uint64_t left = index >> half_bits_;
    uint64_t right = index & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mix64(right ^ mix64(seed_ + round)) & mask);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

// ---- the data set ----

std::string BadToken::text() const {
  return shard + ": token " + std::to_string(position) + " is " + std::to_string(token) + ", beyond the vocabulary";
}

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

HostBatch read_sequences(const Dataset& dataset, int64_t first, int64_t end, int batch_size) {
  std::vector<int64_t> sequences(static_cast<size_t>(std::clamp<int64_t>(end - first, 0, batch_size)));
  std::iota(sequences.begin(), sequences.end(), first);
  HostBatch batch = read_rows(dataset, sequences, batch_size);
  if (!batch.bad.empty()) throw Error(ExitCode::data, batch.bad.front().text(), kBadTokenHint);
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

// ---- the loader ----

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, int64_t position)
    : dataset_(std::move(dataset)), options_(options), start_(position) {
  for (int64_t i = 0; i < kThreads; ++i)
    threads_.emplace_back([this](std::stop_token stop) { read_ahead(std::move(stop)); });
}

// The order that ranks and micro-batches slice.
int64_t Loader::sequence_of(int64_t sample) const {
  const int64_t epoch = sample / dataset_->sequences();
  const auto index = static_cast<uint64_t>(sample % dataset_->sequences());
  const uint64_t epoch_seed = Rng(options_.seed, static_cast<uint64_t>(epoch)).bits(0);
  return static_cast<int64_t>(Permutation(static_cast<uint64_t>(dataset_->sequences()), epoch_seed)(index));
}

HostBatch Loader::read(int64_t number) const {
  const int64_t first_sample = start_ + (number * options_.ranks + options_.rank) * options_.batch_size;
  std::vector<int64_t> sequences;
  for (int row = 0; row < options_.batch_size; ++row) sequences.push_back(sequence_of(first_sample + row));
  return read_rows(*dataset_, sequences, options_.batch_size);
}

void Loader::read_ahead(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (slot_freed_.wait(lock, stop, [this] { return next_to_read_ < returned_ + kSlots; })) {
    const int64_t number = next_to_read_++;
    lock.unlock();
    Slot slot{.ready = true};
    try {
      slot.batch = read(number);
    } catch (...) {
      slot.error = std::current_exception();
    }
    lock.lock();
    slots_[static_cast<size_t>(number % kSlots)] = std::move(slot);
    slot_filled_.notify_one();
    if (stop.stop_requested()) return;
  }
}

HostBatch Loader::next() {
  std::unique_lock lock(mutex_);
  Slot& slot = slots_[static_cast<size_t>(returned_ % kSlots)];
  slot_filled_.wait(lock, [&slot] { return slot.ready; });
  if (slot.error) std::rethrow_exception(slot.error); // the slot keeps the error: the next call throws it too
  HostBatch batch = std::exchange(slot, {}).batch;
  ++returned_;
  lock.unlock();
  slot_freed_.notify_one();
  return batch;
}

} // namespace gpt2
