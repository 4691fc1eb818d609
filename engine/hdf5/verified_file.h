// A file of a checkpoint that gives out no byte before the hash of its block has been compared with the manifest's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/hdf5/manifest.h"
#include "engine/system/files.h"

namespace gpt2 {

// Blocks that were verified lately, of all files of a checkpoint: tensors end and begin inside blocks, and neighbours
// are read one after the other. Not for two threads.
class BlockCache {
 public:
  explicit BlockCache(int files);

  struct Block {
    std::string path;
    size_t number = 0;
    bool filled = false;          // false: what is in it is another block's
    std::vector<std::byte> bytes; // of the block, and beyond them what is left of a longer one
  };
  // The block, or the one that has not been used for longest, to be filled.
  Block& find(const std::string& path, size_t number);

 private:
  size_t capacity_;
  std::vector<std::unique_ptr<Block>> blocks_; // the last used one first
};

struct FilePart {
  int64_t offset;
  std::span<std::byte> out;
};

class VerifiedFile {
 public:
  // Throws Error(checkpoint), as read() does, where the file is not what the manifest says.
  VerifiedFile(const std::string& folder, const FileHashes& hashes, std::shared_ptr<BlockCache> cache);

  const std::string& path() const { return file_.path(); }
  int64_t bytes() const { return hashes_.bytes; }
  // Inside the file. read() keeps blocks of which others may want the rest. read_parts() is given all that is wanted at
  // once: each block is read once, straight to where it is wanted, and several at a time.
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
