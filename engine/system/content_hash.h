// XXH3-128 as 32 hexadecimal digits, what xxh128sum prints: the hash that manifests of checkpoints and data sets hold.
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

std::string hash_of(std::span<const std::byte> bytes);
std::string hash_of_range(const File& file, int64_t begin, int64_t count); // without holding it in memory

// Reads a file in order and hashes what it reads, while that is in the core's cache: hidden where a disk is waited for,
// a fifth to a half of reading from the page cache (docs/benchmarks.md).
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
