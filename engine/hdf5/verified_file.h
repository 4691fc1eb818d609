// A file of a checkpoint whose bytes are returned only after the hash of their 16 MiB block was compared with the
// manifest's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/hdf5/manifest.h"
#include "engine/system/files.h"

namespace gpt2 {

// LRU cache of verified blocks of all files of a checkpoint: several tensors share a block. Not thread-safe.
class BlockCache {
 public:
  explicit BlockCache(int files);

  struct Block {
    std::string path;
    size_t number = 0;
    bool filled = false;          // false: `bytes` belongs to another block
    std::vector<std::byte> bytes; // may be larger than the block
  };
  // The block, or the least recently used one with filled = false.
  Block& find(const std::string& path, size_t number);

 private:
  size_t capacity_;
  std::vector<Block> blocks_; // most recently used first
};

struct FilePart {
  int64_t offset;
  std::span<std::byte> out;
};

class VerifiedFile {
 public:
  // Throws Error(checkpoint), as read() does, if the file differs from the manifest.
  VerifiedFile(const std::string& folder, const FileHashes& hashes, std::shared_ptr<BlockCache> cache);

  const std::string& path() const { return file_.path(); }
  int64_t bytes() const { return hashes_.bytes; }
  // Inside the file. read() caches partly used blocks. read_parts() reads each block once, directly into the parts,
  // which must not overlap, and several blocks in parallel.
  void read(int64_t offset, std::span<std::byte> out) const;
  void read_parts(std::vector<FilePart> parts) const;

 private:
  void read_block(size_t block, std::span<const FilePart> parts) const; // in order, inside the block
  std::span<const std::byte> cached(size_t number) const;

  File file_;
  FileHashes hashes_;
  std::shared_ptr<BlockCache> cache_;
};

} // namespace gpt2
