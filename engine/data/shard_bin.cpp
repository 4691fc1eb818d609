#include <array>

#include "engine/data/shard_formats.h"

namespace gpt2 {

TokenExtent find_bin_tokens(const File& file) {
  const int64_t size = file.size();
  if (size < kBinHeaderBytes)
    refuse_shard(file.path(), "is truncated: its header alone takes " + std::to_string(kBinHeaderBytes) +
                                  " bytes, the file has " + std::to_string(size));
  std::array<int32_t, kBinHeaderBytes / 4> header;
  file.read_at(0, std::as_writable_bytes(std::span(header)));
  if (header[1] != kBinVersion)
    throw Error(
        ExitCode::data,
        file.path() + " has version " + std::to_string(header[1]) + " of the llm.c format, not 1 (uint16 tokens)",
        "make the shard again with bin/prepare_data");
  const int64_t tokens = header[2];
  if (tokens <= 0) refuse_shard(file.path(), "holds no tokens: its header counts " + std::to_string(tokens));
  const int64_t expected = kBinHeaderBytes + tokens * 2;
  if (size != expected)
    refuse_shard(file.path(), std::string(size < expected ? "is truncated" : "has trailing bytes") + ": expected " +
                                  std::to_string(expected) + " bytes for " + std::to_string(tokens) +
                                  " tokens, found " + std::to_string(size));
  return {.offsets = {kBinHeaderBytes}, .chunk_tokens = tokens, .tokens = tokens};
}

} // namespace gpt2
