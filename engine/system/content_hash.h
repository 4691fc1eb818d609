// Hashes of libxxhash, which find damaged bytes at memory speed. Not for security.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/system/files.h"

struct XXH3_state_s;

namespace gpt2 {

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed = 0); // of shards' blocks

// XXH3-128 as 32 hexadecimal digits, as xxh128sum prints it: the hash in manifests of checkpoints and datasets.
std::string hash_of(std::span<const std::byte> bytes);
std::string hash_of_range(const File& file, int64_t begin, int64_t count); // in chunks of 1 MiB

// Reads a file sequentially and hashes each 1 MiB while it is in the core's cache. The hash takes a fifth to a half of
// the time of reading from the page cache; behind a disk it is free (docs/benchmarks.md).
class HashingReader {
 public:
  HashingReader(const File& file, int64_t begin); // the file must outlive it

  void read(std::span<std::byte> out);
  void skip(int64_t count);
  std::string hash() const; // of all that was read or skipped

 private:
  const File& file_;
  int64_t at_;
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> state_;
  std::vector<std::byte> skipped_;
};

} // namespace gpt2
