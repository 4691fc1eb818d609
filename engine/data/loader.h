// Batches of sequences in an order that is a pure function of (seed, sample number).
//
// The set is cut into sequences of T + 1 tokens (stride T, so each target is predicted once); each epoch visits
// all of them once, shuffled anew by a seeded Feistel permutation that needs no memory. Ranks and micro-batches slice
// that one order, so the position is a single integer and survives a change of ranks or batch size.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
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

// A token that no model has a row for: a damaged shard, or one of another tokenizer.
struct BadToken {
  std::string shard;
  int64_t position; // in the shard
  uint16_t token;
};

// All shards as one array of sequences. Immutable after construction, safe to read from many threads.
class Dataset {
 public:
  // Throws Error(data) if no shard holds one whole sequence.
  Dataset(std::vector<std::unique_ptr<TokenSource>> shards, int seq_len, int vocab);

  int64_t sequences() const;
  int64_t tokens() const; // in all shards
  int shards() const;
  int seq_len() const;
  std::string fingerprint() const; // of sizes and of sequences here and there: other data has another one
  // Writes seq_len inputs and seq_len targets of one sequence. One with a token beyond the vocabulary, the first of
  // which is returned, becomes a blank: zeros, and every target ignored. One bad token must not end a run of days.
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
  std::vector<BadToken> bad = {}; // one for each sequence that was blanked
  Batch view() const { return {batch_size, seq_len, inputs, targets}; }
};

struct LoaderOptions {
  int batch_size = 4; // sequences per micro-batch on this rank
  int rank = 0, ranks = 1;
  uint64_t seed = 1337;
  bool shuffle = true;
  int prefetch = 4; // micro-batches kept ready by the background threads; 0: read in next()
  int threads = 2;
};

// next() hands out micro-batches in order: the k-th after `position` covers, over all ranks, samples
// position + k*B*ranks ... ; rank r takes the r-th run of B.
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, int64_t position = 0);
  ~Loader();
  Loader(const Loader&) = delete;

  HostBatch next(); // blocks until it is read; rethrows a background Error

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Sequences from `first` on, as many as there are before `end`; the other rows are padded with ignored targets. Throws
// Error(data) for a token beyond the vocabulary: a loss without it could not be compared.
HostBatch read_sequences(const Dataset& dataset, int64_t first, int64_t end, int batch_size);

// The first `sequences` of the set in order, whatever the ranks: this rank's share as read_sequences gives it, in
// micro-batches of B. Sum the losses over ranks, divide by tokens.
std::vector<HostBatch> validation_batches(const Dataset& dataset, int64_t sequences, int batch_size, int rank,
                                          int ranks);

} // namespace gpt2
