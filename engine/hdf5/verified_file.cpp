#include "engine/hdf5/verified_file.h"

#include <algorithm>

#include "engine/hdf5/parallel_for.h"

namespace gpt2 {
namespace {

// Ranks hold neighboring segments of each tensor, so a reader visits the files cyclically: two blocks per file, one
// with headers and one with values. The cap bounds the cache to 512 MiB; beyond it some blocks are read more than once.
constexpr int kMostBlocks = 32;

} // namespace

BlockCache::BlockCache(int files) : capacity_(static_cast<size_t>(std::min(2 * files + 2, kMostBlocks))) {}

BlockCache::Block& BlockCache::find(const std::string& path, size_t number) {
  const auto is_it = [&](const Block& block) { return block.number == number && block.path == path; };
  auto found = std::ranges::find_if(blocks_, is_it);
  if (found == blocks_.end()) {
    if (blocks_.size() < capacity_) blocks_.emplace_back();
    found = blocks_.end() - 1;
    found->path = path;
    found->number = number;
    found->filled = false;
  }
  std::rotate(blocks_.begin(), found, found + 1);
  return blocks_.front();
}

VerifiedFile::VerifiedFile(const std::string& folder, const FileHashes& hashes, std::shared_ptr<BlockCache> cache)
    : file_(File::open(folder + "/" + hashes.name, ExitCode::checkpoint)), hashes_(hashes), cache_(std::move(cache)) {}

void VerifiedFile::read_block(size_t block, std::span<const FilePart> parts) const {
  int64_t at = static_cast<int64_t>(block) * kBlockBytes;
  const int64_t end = at + hashes_.block_bytes(block);
  HashingReader reader(file_, at);
  for (const FilePart& part : parts) {
    reader.skip(part.offset - at);
    reader.read(part.out);
    at = part.offset + static_cast<int64_t>(part.out.size());
  }
  reader.skip(end - at);
  if (reader.hash() != hashes_.blocks[block]) throw damaged_block(path(), hashes_, block);
}

std::span<const std::byte> VerifiedFile::cached(size_t number) const {
  BlockCache::Block& block = cache_->find(path(), number);
  const auto count = static_cast<size_t>(hashes_.block_bytes(number));
  if (block.bytes.size() < count) block.bytes.resize(count);
  const auto bytes = std::span(block.bytes).first(count);
  if (!block.filled) {
    const FilePart all{static_cast<int64_t>(number) * kBlockBytes, bytes};
    read_block(number, {&all, 1});
    block.filled = true;
  }
  return bytes;
}

void VerifiedFile::read(int64_t offset, std::span<std::byte> out) const {
  std::vector<FilePart> whole; // blocks: not cached, no other tensor shares them
  while (!out.empty()) {
    const auto block = static_cast<size_t>(offset / kBlockBytes);
    const int64_t inside = offset % kBlockBytes;
    const auto count = std::min(out.size(), static_cast<size_t>(hashes_.block_bytes(block) - inside)); // of this block
    if (count == static_cast<size_t>(kBlockBytes))
      whole.push_back({offset, out.first(count)});
    else
      std::ranges::copy(cached(block).subspan(static_cast<size_t>(inside), count), out.begin());
    offset += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
  read_parts(std::move(whole));
}

void VerifiedFile::read_parts(std::vector<FilePart> parts) const {
  std::ranges::sort(parts, {}, &FilePart::offset);
  struct Block {
    size_t number;
    std::vector<FilePart> parts;
  };
  std::vector<Block> blocks;
  for (const FilePart& part : parts) {
    int64_t at = part.offset;
    for (std::span<std::byte> rest = part.out; !rest.empty();) {
      const auto number = static_cast<size_t>(at / kBlockBytes);
      const auto count = std::min(rest.size(), static_cast<size_t>(kBlockBytes - at % kBlockBytes));
      if (blocks.empty() || blocks.back().number != number) blocks.push_back({number, {}});
      blocks.back().parts.push_back({at, rest.first(count)});
      rest = rest.subspan(count);
      at += static_cast<int64_t>(count);
    }
  }
  parallel_for(blocks.size(), [&](size_t i) { read_block(blocks[i].number, blocks[i].parts); });
}

} // namespace gpt2
