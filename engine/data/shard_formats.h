// What shard.cpp needs to know of each file format: how to recognise it and where its tokens lie.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/system/files.h"

namespace gpt2 {

struct TokenExtent {
  std::vector<int64_t> offsets;            // of each chunk of tokens, bytes from the start of the file
  int64_t chunk_tokens = 0;                // of every chunk but the last: uint16, little-endian, back to back
  int64_t tokens = 0;                      // of all chunks
  int64_t block_tokens = 0;                // that one hash covers; the last block may be shorter
  std::vector<uint64_t> block_hashes = {}; // XXH64 of each block; empty: the file has none
};

constexpr int32_t kBinMagic = 20240520;
constexpr std::string_view kHdf5Magic = "\x89HDF\r\n\x1a\n";

constexpr int64_t kBinHeaderBytes = 1024;
std::array<int32_t, kBinHeaderBytes / 4> bin_header(int64_t tokens);

// Both throw Error(data) if the file is truncated or not laid out as expected.
TokenExtent find_bin_tokens(const File& file);
TokenExtent find_hdf5_tokens(const File& file);

} // namespace gpt2
