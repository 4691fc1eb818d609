// A file of a checkpoint that gives out no byte before the hash of its block has been compared with the manifest's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/files.h"
#include "engine/io/manifest.h"

namespace gpt2 {

// Blocks that were verified lately, of all files of a checkpoint: tensors end and begin inside blocks, and neighbours
// are read one after the other. Not for two threads.
class BlockCache {
 public:
  explicit BlockCache(int files);

  struct Block {
    std::string path;
    size_t number = 0;
    std::vector<std::byte> bytes; // empty: nothing is in it yet
  };
  // The block, or the one that has not been used for longest, emptied, to be filled.
  Block& find(const std::string& path, size_t number);

 private:
  size_t capacity_;
  std::vector<std::unique_ptr<Block>> blocks_; // the last used one first
};

class VerifiedFile {
 public:
  // Throws Error(checkpoint), as read() does, where the file is not what the manifest says.
  VerifiedFile(const std::string& folder, const FileHashes& hashes, std::shared_ptr<BlockCache> cache);

  const std::string& path() const { return file_.path(); }
  int64_t bytes() const { return hashes_.bytes; }
  void read(int64_t offset, std::span<std::byte> out) const; // inside the file

 private:
  void read_block(size_t block, std::span<std::byte> out) const;
  std::span<const std::byte> cached(size_t block) const;

  File file_;
  FileHashes hashes_;
  std::shared_ptr<BlockCache> cache_;
};

} // namespace gpt2
