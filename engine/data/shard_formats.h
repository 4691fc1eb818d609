// File formats of token shards. open_shard() reads both; bin/prepare_data (tools/prepare_data/write_shard.h) writes
// both.
//
//   .bin  256 int32 (magic, version, token count, zeros), then uint16 tokens: llm.c's format
//   .h5   /tokens        uint16 (count): written contiguous; read contiguous or chunked, without compression
//         /block_hashes  uint64 (blocks): XXH64 of each MiB of the tokens' bytes; attribute block_bytes
//         attributes of /: version, source, tokenizer, sealed
//         After the last byte of the HDF5 file, which HDF5 permits: an Hdf5Seal.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/system/files.h"

namespace gpt2 {

constexpr int32_t kBinMagic = 20240520, kBinVersion = 1;
constexpr int64_t kBinHeaderBytes = 1024;

constexpr std::string_view kHdf5Magic = "\x89HDF\r\n\x1a\n";
constexpr uint64_t kHdf5ShardVersion = 1;
constexpr uint64_t kHdf5BlockBytes = 1 << 20;

// Checksum of everything in an HDF5 shard except its tokens, which block_hashes cover.
struct Hdf5Seal {
  static constexpr std::string_view kMagic = "GPT2SEAL";

  char magic[8];
  uint64_t token_offset, token_bytes;
  uint64_t structure_hash; // XXH64 of all bytes before the seal, without the tokens
  uint64_t own_hash;       // hash_of_fields()

  uint64_t hash_of_fields() const; // XXH64 of the fields above own_hash
};
static_assert(sizeof(Hdf5Seal) == 40);

struct TokenExtent {
  std::vector<int64_t> offsets;            // of each chunk of tokens, bytes from the start of the file
  int64_t chunk_tokens = 0;                // per chunk, except the last: uint16, little-endian, contiguous
  int64_t tokens = 0;                      // in all chunks
  int64_t block_tokens = 0;                // per hash; the last block may be shorter
  std::vector<uint64_t> block_hashes = {}; // XXH64 of each block; empty: the file has no hashes
};

[[noreturn]] void refuse_shard(const std::string& path, const std::string& why); // Error(data): "PATH WHY"

// Both throw Error(data) for a truncated file or another layout.
TokenExtent find_bin_tokens(const File& file);
TokenExtent find_hdf5_tokens(const File& file);

} // namespace gpt2
