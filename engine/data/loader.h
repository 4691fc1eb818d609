// Batches of sequences in an order that is a pure function of (seed, sample number).
//
// The tokens are split into sequences of T + 1 (stride T, so each target is predicted once). Each epoch visits every
// sequence once, in the order of a seeded Feistel permutation, which needs no memory. Ranks and micro-batches slice
// this one order: the position is a single integer and stays valid when the number of ranks or the batch size changes.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "engine/data/shard.h"
#include "engine/model/batch.h"

namespace gpt2 {

// A pseudo-random bijection on [0, size): Feistel rounds with cycle walking.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed);
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t size_, seed_;
  int half_bits_;
};

// A token beyond the vocabulary: a damaged shard, or another tokenizer.
struct BadToken {
  std::string shard;
  int64_t position; // in the shard
  uint16_t token;

  std::string text() const; // "SHARD: token 17 is 60000, beyond the vocabulary"
};
inline constexpr const char* kBadTokenHint =
    "use shards made with GPT-2's tokenizer; if these were, make or copy this one again";

// All shards as one array of sequences. Immutable after construction, safe to read from many threads.
class Dataset {
 public:
  // Throws Error(data) if no shard holds one whole sequence.
  Dataset(std::vector<std::unique_ptr<TokenSource>> shards, int seq_len, int vocab);

  int64_t sequences() const { return first_sequence_.back(); }
  int64_t tokens() const; // in all shards
  int shards() const { return static_cast<int>(shards_.size()); }
  int seq_len() const { return seq_len_; }
  std::string fingerprint() const; // sizes, and a hash of 64 sampled sequences
  // Writes seq_len inputs and seq_len targets of one sequence. A sequence with a token beyond the vocabulary is masked:
  // zero inputs, ignored targets; the first such token is returned. One bad token must not end a run of days.
  std::optional<BadToken> read(int64_t sequence, int32_t* inputs, int32_t* targets) const;

 private:
  std::vector<std::unique_ptr<TokenSource>> shards_;
  std::vector<int64_t> first_sequence_; // per shard, then the total
  int seq_len_, vocab_;
};

// Owns the tokens that a Batch points into.
struct HostBatch {
  int batch_size = 0, seq_len = 0;
  std::vector<int32_t> inputs, targets;
  std::vector<BadToken> bad = {}; // one per masked sequence
  Batch view() const { return {batch_size, seq_len, inputs, targets}; }
};

struct LoaderOptions {
  int batch_size = 4; // sequences per micro-batch on this rank
  int rank = 0, ranks = 1;
  uint64_t seed = 1337;
};

// next() returns micro-batches in order; two threads read four of them ahead. Over all ranks, micro-batch k covers
// samples position + k*B*ranks and up; rank r gets the r-th group of B.
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, int64_t position = 0);
  Loader(const Loader&) = delete;

  HostBatch next(); // blocks until the micro-batch is read; rethrows an Error of a background thread

 private:
  static constexpr int64_t kSlots = 4, kThreads = 2;
  struct Slot {
    bool ready = false;
    HostBatch batch = {};
    std::exception_ptr error = nullptr; // instead of a batch
  };

  int64_t sequence_of(int64_t sample) const;
  HostBatch read(int64_t number) const;
  void read_ahead(std::stop_token stop);

  const std::shared_ptr<const Dataset> dataset_;
  const LoaderOptions options_;
  const int64_t start_; // position at construction

  // Micro-batch k is in slot k % kSlots. A thread may read k once k - kSlots has been returned: threads finish in any
  // order, and next() returns micro-batches in theirs.
  std::mutex mutex_; // guards slots_, next_to_read_, returned_
  std::condition_variable_any slot_freed_, slot_filled_;
  std::array<Slot, kSlots> slots_;
  int64_t next_to_read_ = 0, returned_ = 0; // micro-batches since start_

  std::vector<std::jthread> threads_; // last: joined before the members above are destroyed
};

// Sequences [first, end), at most batch_size; further rows have ignored targets. Throws Error(data) for a token beyond
// the vocabulary: a loss over fewer tokens is not comparable.
HostBatch read_sequences(const Dataset& dataset, int64_t first, int64_t end, int batch_size);

// This rank's micro-batches of the first `sequences` sequences, in order. The set does not depend on the number of
// ranks. The caller sums the losses over ranks and divides by tokens.
std::vector<HostBatch> validation_batches(const Dataset& dataset, int64_t sequences, int batch_size, int rank,
                                          int ranks);

} // namespace gpt2
