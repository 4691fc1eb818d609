// Token shards on disk, read by position: llm.c's .bin and HDF5 (shard_formats.h) behind one interface.
//
// open_shard() looks up the offsets of the tokens once; after that both formats are pread at known offsets. The
// training loop never takes HDF5's global lock, and an I/O error is an Error(data), not a bus error. The first read of
// a block of an HDF5 shard compares its hash, so the trainer never uses damaged tokens.
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

// Detects the format by content, not by name. Throws Error(data) for a missing, empty, truncated or foreign file.
std::unique_ptr<TokenSource> open_shard(const std::string& path);

// Tokens in memory: the built-in sample and tests.
std::unique_ptr<TokenSource> memory_shard(std::string name, std::vector<uint16_t> tokens);

// Expands a glob (or a comma-separated list of globs), sorted by name. Throws Error(data) if nothing matches.
std::vector<std::string> expand_globs(const std::string& patterns);

// Refuses training shards that are also validation shards: the validation loss would measure memorization. Throws
// Error(data) that names the first shard found in both lists of paths. Compares contents, so it finds links and copies:
// equal token counts, and equal tokens at the start, in the middle and at the end. Opens every shard; reads 12 KiB of
// each validation shard and of each training shard of the same length.
void refuse_shared_shards(const std::vector<std::string>& train, const std::vector<std::string>& validation);

} // namespace gpt2
