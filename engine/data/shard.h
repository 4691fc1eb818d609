// Token shards on disk, read by position. Two formats behind one interface:
//   .bin  llm.c: 256 int32 header (20240520, version 1, token count), then uint16 tokens
//   .h5   HDF5: the same tokens in one contiguous dataset "tokens", xxh64 per block in "block_hashes",
//         source and tokenizer as attributes
// The offset of an HDF5 shard's data is looked up once at opening; after that both are pread at known offsets, so
// HDF5's global lock is never taken in the loop and an I/O error is an Error(data), not a bus error. A block of an HDF5
// shard is compared with its hash when it is first read: damaged tokens are never trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gpt2 {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t tokens() const = 0;
  virtual const std::string& path() const = 0;
  // Fills `out` with tokens [position, position + out.size()). Thread-safe. Throws Error(data) naming the file.
  virtual void read(int64_t position, std::span<uint16_t> out) const = 0;
};

// Opens by content, not by name. Throws Error(data) for a missing, empty, truncated or foreign file.
std::unique_ptr<TokenSource> open_shard(const std::string& path);

// A source held in memory: the built-in sample, and tests.
std::unique_ptr<TokenSource> memory_shard(std::string name, std::vector<uint16_t> tokens);

// Expands a glob (or a comma-separated list of globs), sorted by name. Throws Error(data) if nothing matches.
std::vector<std::string> expand_globs(const std::string& patterns);

struct ShardMetadata {
  std::string source;    // where the text came from
  std::string tokenizer; // "gpt2"
};
void write_bin_shard(const std::string& path, std::span<const uint16_t> tokens);
void write_hdf5_shard(const std::string& path, std::span<const uint16_t> tokens, const ShardMetadata& metadata);

// Reads every block and compares its hash (HDF5 shards only). Throws Error(data) naming the first bad block.
void verify_hdf5_shard(const std::string& path);

} // namespace gpt2
