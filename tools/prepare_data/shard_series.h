// A stream of tokens to numbered shards of equal size, train_000000.bin, train_000001.bin, ..., made in a working
// folder where none of them is mistaken for a part of a data set, and moved to their own place when all are whole. The
// shard being filled grows on the disk, not in memory, and what was written behind a known place can be taken back.
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
    std::string folder; // to work in
    std::string prefix; // "train"
    std::string format; // "bin" or "h5"
    int64_t shard_tokens = 0;
    ShardMetadata metadata; // of .h5
  };
  struct State {
    std::vector<ShardEntry> shards; // full
    int64_t open_tokens = 0;        // in the one after them

    int64_t tokens() const;
    bool operator==(const State&) const = default;
  };
  // Goes on from `state`, which must have been on the disk (sync()): what was appended since is cut off.
  ShardSeries(Options options, State state);

  void append(std::span<const uint16_t> tokens);
  void sync();   // state() is on the disk
  void finish(); // closes the last, shorter shard
  const State& state() const { return state_; }
  void forget(); // the way back behind state(), which has been written down: what only it needs is removed

  // Moves the shards into `folder`; those that are there already, from an attempt that was broken off, stay.
  void publish(const std::string& folder) const;

 private:
  std::string raw_path(size_t shard) const; // 1024 bytes for llm.c's header, then the tokens
  std::string path(size_t shard) const;     // of the finished file
  void flush();
  void close_shard();

  Options options_;
  State state_;
  std::optional<File> open_;     // the shard after the full ones
  std::vector<uint16_t> buffer_; // its last tokens, counted in open_tokens
  size_t forgotten_ = 0;         // full shards whose raw tokens are gone
};

} // namespace gpt2
