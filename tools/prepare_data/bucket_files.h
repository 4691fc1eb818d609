// External bucket sort of encoded documents by a 64-bit key: bucket i of n holds the keys of the i-th of n equal
// ranges. Reading bucket after bucket, each sorted in memory, yields the documents in the order of their keys. Memory
// holds one slice: a bucket larger than `most_bytes` is read in slices of its key range.
//
// A record: uint64 key, uint32 tokens, uint16 validation and uint16 part (0 or 1), then the tokens as uint16.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/system/files.h"

namespace gpt2 {

struct BucketOptions {
  std::string folder;
  size_t count = 1;
  bool keep_order = false;  // keys are ignored: each bucket is filled up to `most_bytes` before the next
  bool deduplicate = false; // keys are hashes of the tokens: the first of equal documents is kept
  int64_t most_bytes = 1;   // of a slice in memory
};

class BucketFiles {
 public:
  // `bytes`: the valid bytes of each bucket file; the rest is truncated. Empty: start with empty buckets.
  BucketFiles(BucketOptions options, const std::vector<int64_t>& bytes);

  // `part`: a chunk of a longer document, never a duplicate: documents that share one chunk may differ in another.
  void append(uint64_t key, bool validation, std::span<const uint16_t> tokens, bool part = false);
  void sync();                        // flush and fsync
  std::vector<int64_t> bytes() const; // of each bucket, including buffered ones

  // ---- reading, after the last append ----

  struct Slice {
    size_t bucket = 0;
    uint64_t first_key = 0, last_key = UINT64_MAX; // inclusive
  };
  std::vector<Slice> slices() const;

  struct Record {
    uint64_t key;
    bool validation, part;
    std::span<const uint16_t> tokens; // in Records::memory
  };
  struct Records {
    std::vector<uint16_t> memory;
    std::vector<Record> records; // in order
    int64_t duplicates = 0;      // documents dropped
  };
  std::optional<Records> load(const Slice& slice, const std::function<bool()>& stop = {}) const; // nullopt: stopped
  void remove(size_t bucket); // the file, if it exists

 private:
  struct Bucket {
    std::optional<File> file;    // nullopt: full (keep_order), or read and removed
    int64_t bytes = 0;           // in the file
    std::vector<std::byte> tail; // buffered, not yet in the file
  };
  std::string path(size_t bucket) const;
  void open_next(int64_t bytes);
  void flush(Bucket& bucket);
  void close(Bucket& bucket); // flush, fsync and close

  BucketOptions options_;
  size_t buffer_bytes_; // of each bucket's tail before a flush
  std::vector<Bucket> buckets_;
};

} // namespace gpt2
