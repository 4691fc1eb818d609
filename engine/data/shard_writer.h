// A stream of tokens to numbered shards of equal size: PREFIX_000000.bin, PREFIX_000001.bin, ...
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/data/shard.h"

namespace gpt2 {

class ShardWriter {
 public:
  // extension: "bin" or "h5".
  ShardWriter(std::string prefix, std::string extension, int64_t shard_tokens, ShardMetadata metadata);

  void append(std::span<const uint16_t> tokens);
  void finish(); // writes the last, shorter shard

  int64_t tokens() const { return tokens_; }
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  void write();

  std::string prefix_, extension_;
  size_t shard_tokens_;
  ShardMetadata metadata_;
  std::vector<uint16_t> buffer_; // the shard being filled
  std::vector<std::string> paths_;
  int64_t tokens_ = 0;
};

// Shards of this prefix that are on the disk already.
std::vector<std::string> existing_shards(const std::string& prefix, const std::string& extension);

} // namespace gpt2
