#include "engine/io/verified_file.h"

#include <algorithm>

#include "engine/io/parallel_jobs.h"

namespace gpt2 {
namespace {

// Ranks hold neighbouring pieces of a tensor, so a reader goes through the files round and round: two blocks of each,
// one with headers and one with values. Beyond half a gigabyte some are read more than once instead.
constexpr int kMostBlocks = 32;

} // namespace

BlockCache::BlockCache(int files) : capacity_(static_cast<size_t>(std::min(2 * files + 2, kMostBlocks))) {}

BlockCache::Block& BlockCache::find(const std::string& path, size_t number) {
  const auto is_it = [&](const auto& block) { return block->number == number && block->path == path; };
  auto found = std::find_if(blocks_.begin(), blocks_.end(), is_it);
  if (found == blocks_.end()) {
    if (blocks_.size() < capacity_) blocks_.push_back(std::make_unique<Block>());
    found = blocks_.end() - 1;
    (*found)->path = path;
    (*found)->number = number;
    (*found)->bytes.clear(); // its memory stays
  }
  std::rotate(blocks_.begin(), found, found + 1);
  return *blocks_.front();
}

VerifiedFile::VerifiedFile(const std::string& folder, const FileHashes& hashes, std::shared_ptr<BlockCache> cache)
    : file_(File::open(folder + "/" + hashes.name, ExitCode::checkpoint)), hashes_(hashes), cache_(std::move(cache)) {}

void VerifiedFile::read_block(size_t block, std::span<std::byte> out) const {
  file_.read_at(static_cast<int64_t>(block) * kBlockBytes, out);
  if (hash_of(out) != hashes_.blocks[block]) throw damaged_block(path(), hashes_, block);
}

std::span<const std::byte> VerifiedFile::cached(size_t block) const {
  std::vector<std::byte>& bytes = cache_->find(path(), block).bytes;
  if (!bytes.empty()) return bytes;
  bytes.resize(static_cast<size_t>(hashes_.block_bytes(block)));
  try {
    read_block(block, bytes);
  } catch (...) {
    bytes.clear();
    throw;
  }
  return bytes;
}

void VerifiedFile::read(int64_t offset, std::span<std::byte> out) const {
  struct Whole {
    size_t block;
    std::span<std::byte> out;
  };
  std::vector<Whole> whole; // these go straight to where they are wanted, several at a time
  while (!out.empty()) {
    const auto block = static_cast<size_t>(offset / kBlockBytes);
    const int64_t inside = offset % kBlockBytes;
    const auto count = std::min(out.size(), static_cast<size_t>(hashes_.block_bytes(block) - inside)); // of this block
    if (inside == 0 && count == static_cast<size_t>(kBlockBytes))
      whole.push_back({block, out.first(count)});
    else
      std::ranges::copy(cached(block).subspan(static_cast<size_t>(inside), count), out.begin());
    offset += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
  run_jobs(whole.size(), [&](size_t i) { read_block(whole[i].block, whole[i].out); });
}

} // namespace gpt2
