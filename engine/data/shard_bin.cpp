// llm.c's token files: 256 int32 of header (magic, version, token count, zeros), then the tokens.
#include <cstring>

#include "engine/data/shard.h"
#include "engine/data/shard_formats.h"

namespace gpt2 {

namespace {

constexpr int32_t kVersion = 1; // uint16 tokens

} // namespace

std::array<int32_t, kBinHeaderBytes / 4> bin_header(int64_t tokens) {
  return {kBinMagic, kVersion, static_cast<int32_t>(tokens)};
}

TokenExtent find_bin_tokens(const File& file) {
  const int64_t size = file.size();
  if (size < kBinHeaderBytes) {
    throw Error(ExitCode::data,
                file.path() + " is truncated: its header alone takes " + std::to_string(kBinHeaderBytes) +
                    " bytes, the file has " + std::to_string(size),
                "make or copy the shard again");
  }
  decltype(bin_header(0)) header;
  file.read_at(0, std::as_writable_bytes(std::span(header)));
  if (header[1] != kVersion) {
    throw Error(
        ExitCode::data,
        file.path() + " has version " + std::to_string(header[1]) + " of the llm.c format, not 1 (uint16 tokens)",
        "make the shard again with bin/prepare_data");
  }
  const int64_t tokens = header[2];
  if (tokens <= 0) {
    throw Error(ExitCode::data, file.path() + " holds no tokens: its header counts " + std::to_string(tokens),
                "make the shard again");
  }
  const int64_t expected = kBinHeaderBytes + tokens * 2;
  if (size != expected) {
    throw Error(ExitCode::data,
                file.path() + (size < expected ? " is truncated: " : " has trailing bytes: ") + "expected " +
                    std::to_string(expected) + " bytes for " + std::to_string(tokens) + " tokens, found " +
                    std::to_string(size),
                "make or copy the shard again");
  }
  return {.offsets = {kBinHeaderBytes}, .chunk_tokens = tokens, .tokens = tokens};
}

void write_bin_shard(const std::string& path, std::span<const uint16_t> tokens) {
  if (tokens.size() > INT32_MAX) {
    throw Error(ExitCode::disk, path + ": " + std::to_string(tokens.size()) + " tokens do not fit one .bin shard",
                "write smaller shards, or .h5");
  }
  const auto header = bin_header(static_cast<int64_t>(tokens.size()));
  PendingFile pending(path);
  File file = pending.create();
  file.write_at(0, std::as_bytes(std::span(header)));
  file.write_at(kBinHeaderBytes, std::as_bytes(tokens));
  pending.commit();
}

} // namespace gpt2
