// Writes a token stream into numbered shards of equal size, train_000000.bin, train_000001.bin, ..., in a working
// folder; publish() moves complete shards into the data set. The open shard grows on the disk, and a resumed run
// truncates it to a saved State.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/data/dataset_manifest.h"
#include "engine/system/files.h"
#include "tools/prepare_data/write_shard.h"

namespace gpt2 {

std::string shard_name(const std::string& prefix, size_t number, const std::string& extension); // "train_000007.bin"

class ShardSeries {
 public:
  struct Options {
    std::string folder; // the working folder
    std::string prefix; // "train"
    std::string format; // "bin" or "h5"
    int64_t shard_tokens = 0;
    ShardMetadata metadata; // of .h5
  };
  struct State {
    std::vector<ShardEntry> shards; // full
    int64_t open_tokens = 0;        // in the next shard

    int64_t tokens() const;
    bool operator==(const State&) const = default;
  };
  // Resumes from `state`, which sync() has made durable; later tokens are truncated.
  ShardSeries(Options options, State state);

  void append(std::span<const uint16_t> tokens);
  void sync();   // makes state() durable
  void finish(); // closes the last, shorter shard
  const State& state() const { return state_; }
  void forget(); // removes raw files that only a State before the journaled one needs

  // Moves the shards into `folder`, except those that an interrupted publish() has already moved.
  void publish(const std::string& folder) const;

 private:
  std::string raw_path(size_t shard) const; // 1024 bytes for llm.c's header, then the tokens
  std::string path(size_t shard) const;     // of the finished file
  void flush();
  void close_shard();

  Options options_;
  State state_;
  std::optional<File> open_;     // the open shard
  std::vector<uint16_t> buffer_; // its last tokens, included in open_tokens
  size_t forgotten_ = 0;         // full shards whose raw file is removed
};

} // namespace gpt2
