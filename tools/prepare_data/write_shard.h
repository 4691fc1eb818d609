// Writes token shards: the formats of engine/data/shard_formats.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "engine/data/dataset_manifest.h"
#include "engine/data/shard_formats.h"

namespace gpt2 {

std::array<int32_t, kBinHeaderBytes / 4> bin_header(int64_t tokens);

struct ShardMetadata {
  std::string source;    // origin of the text
  std::string tokenizer; // "gpt2"
};

// A failed write leaves an existing file unchanged and throws Error(disk).
void write_bin_shard(const std::string& path, std::span<const uint16_t> tokens);
void write_hdf5_shard(const std::string& path, std::span<const uint16_t> tokens, const ShardMetadata& metadata);

ShardEntry describe_shard(const std::string& path, int64_t tokens); // reads and hashes the whole file

} // namespace gpt2
