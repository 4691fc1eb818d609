// Encoded documents on the disk, sorted roughly by a 64-bit key: bucket i of n holds those whose key is in the i-th of
// n equal ranges. Read bucket after bucket, each sorted in memory, they come out in the order of their keys: however
// many documents there are, memory holds one bucket. A bucket that grew too large is read in slices of its range.
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
  bool keep_order = false;  // keys are ignored: a bucket is filled up to `most_bytes`, then the next one is
  bool deduplicate = false; // a document's key is made of its tokens: of those that are equal, the first one stays
  int64_t most_bytes = 1;   // of a slice in memory
};

class BucketFiles {
 public:
  // `bytes`: how much of each bucket holds, what is behind it is cut off. Empty: no bucket holds anything.
  BucketFiles(BucketOptions options, const std::vector<int64_t>& bytes);

  // `part`: not a whole document, and so never a duplicate: documents with a part in common may differ in another.
  void append(uint64_t key, bool validation, std::span<const uint16_t> tokens, bool part = false);
  void sync();                        // what was appended is on the disk
  std::vector<int64_t> bytes() const; // of each, appended so far

  // ---- reading, when all has been appended ----

  struct Slice {
    size_t bucket = 0;
    uint64_t first_key = 0, last_key = UINT64_MAX; // both belong to it
  };
  std::vector<Slice> slices() const;

  struct Record {
    uint64_t key;
    bool validation, part;
    std::span<const uint16_t> tokens; // in the Records' memory
  };
  struct Records {
    std::vector<uint16_t> memory;
    std::vector<Record> records; // in order
    int64_t duplicates = 0;      // documents left out
  };
  std::optional<Records> load(const Slice& slice, const std::function<bool()>& stop = {}) const; // nothing: stopped
  void remove(size_t bucket); // its file, if it is there

 private:
  struct Bucket {
    std::optional<File> file;    // none: filled in order, or read to its end and removed
    int64_t bytes = 0;           // in the file
    std::vector<std::byte> tail; // to be written behind them
  };
  std::string path(size_t bucket) const;
  void open_next(int64_t bytes);
  void flush(Bucket& bucket);
  void close(Bucket& bucket); // on the disk, and nothing follows

  BucketOptions options_;
  size_t buffer_bytes_; // of each bucket, collected before they are written
  std::vector<Bucket> buckets_;
};

} // namespace gpt2
