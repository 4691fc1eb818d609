#include <cstddef>
#include <vector>

#include "engine/data/shard_formats.h"
#include "engine/hdf5/reader.h"
#include "engine/system/content_hash.h"

namespace gpt2 {
namespace {

constexpr uint64_t kLargestBlockBytes = 64 << 20; // a reader holds one block in memory
constexpr int64_t kLargestStructure = 64 << 20;   // bytes: the hashes of 8 TB

bool fits(const Hdf5Seal& seal, uint64_t bytes_before) {
  return seal.own_hash == seal.hash_of_fields() && seal.token_offset <= bytes_before &&
         seal.token_bytes <= bytes_before - seal.token_offset &&
         bytes_before - seal.token_bytes <= static_cast<uint64_t>(kLargestStructure);
}

bool matches_structure(const Hdf5Seal& seal, const File& file, uint64_t bytes_before) {
  std::vector<std::byte> structure(bytes_before - seal.token_bytes);
  const std::span<std::byte> all(structure);
  file.read_at(0, all.first(seal.token_offset));
  file.read_at(static_cast<int64_t>(seal.token_offset + seal.token_bytes), all.subspan(seal.token_offset));
  return xxh64(structure) == seal.structure_hash;
}

// False: no seal. A seal that does not match is an error.
bool is_sealed(const File& file) {
  const int64_t end = file.size() - static_cast<int64_t>(sizeof(Hdf5Seal));
  if (end < 0) return false;
  Hdf5Seal seal;
  file.read_at(end, std::as_writable_bytes(std::span(&seal, 1)));
  if (std::string_view(seal.magic, sizeof seal.magic) != Hdf5Seal::kMagic) return false;
  const auto before = static_cast<uint64_t>(end);
  if (!fits(seal, before) || !matches_structure(seal, file, before))
    refuse_shard(file.path(), "is damaged: its structure does not match the hash in its seal");
  return true;
}

uint64_t read_attribute(const Hdf5Attributes& attributes, const std::string& name, uint64_t if_absent) {
  const auto found = attributes.find(name);
  if (found == attributes.end() || found->second.type.kind != Hdf5Type::Kind::integer || !found->second.shape.empty())
    return if_absent;
  return static_cast<uint64_t>(to_integer(found->second.type, found->second.value));
}

bool is_vector_of(const Hdf5Dataset& dataset, int64_t bytes) {
  const Hdf5Type expected{.kind = Hdf5Type::Kind::integer, .is_signed = false, .size = bytes};
  return dataset.type == expected && dataset.shape.size() == 1;
}

// Checks counts and sizes, which may be damaged, before use. extent.tokens already fits into the file.
void read_block_hashes(const File& file, const Hdf5Dataset& dataset, TokenExtent& extent) {
  const uint64_t block_bytes = read_attribute(dataset.attributes, "block_bytes", kHdf5BlockBytes);
  if (block_bytes < 2 || block_bytes % 2 != 0 || block_bytes > kLargestBlockBytes)
    refuse_shard(file.path(), "is damaged: block_bytes is " + std::to_string(block_bytes));
  extent.block_tokens = static_cast<int64_t>(block_bytes / 2);
  const int64_t blocks = (extent.tokens + extent.block_tokens - 1) / extent.block_tokens;
  if (!is_vector_of(dataset, sizeof(uint64_t)) || dataset.elements() != blocks) {
    refuse_shard(file.path(), "has " + std::to_string(dataset.elements()) + " block hashes, expected " +
                                  std::to_string(blocks) + " of uint64");
  }
  extent.block_hashes.resize(static_cast<size_t>(blocks));
  auto out = std::as_writable_bytes(std::span(extent.block_hashes));
  for (const Hdf5Range& range : ranges_of(dataset, 0, blocks)) {
    if (range.offset >= 0) file.read_at(range.offset, out.first(static_cast<size_t>(range.bytes)));
    out = out.subspan(static_cast<size_t>(range.bytes));
  }
}

Hdf5Contents read_structure(const File& file) {
  try {
    const auto wanted = [](const std::string& name) { return name == "tokens" || name == "block_hashes"; };
    return read_hdf5(hdf5_bytes(file), wanted);
  } catch (const Hdf5Damage& damage) {
    refuse_shard(file.path(),
                 "is a truncated or damaged HDF5 file, or uses HDF5 features that shards do not: " + damage.what);
  }
}

} // namespace

uint64_t Hdf5Seal::hash_of_fields() const {
  return xxh64(std::as_bytes(std::span(this, 1)).first(offsetof(Hdf5Seal, own_hash)));
}

TokenExtent find_hdf5_tokens(const File& file) {
  const bool sealed = is_sealed(file); // false: written by h5py, or by a version before seals
  const auto [attributes, datasets] = read_structure(file);
  if (!sealed && read_attribute(attributes, "sealed", 0) != 0)
    refuse_shard(file.path(), "is truncated or damaged: its seal is missing");
  if (const uint64_t version = read_attribute(attributes, "version", kHdf5ShardVersion); version != kHdf5ShardVersion)
    refuse_shard(file.path(), "has version " + std::to_string(version) + " of the shard format, not 1");
  const auto tokens = datasets.find("tokens"), hashes = datasets.find("block_hashes");
  if (tokens == datasets.end()) refuse_shard(file.path(), "is an HDF5 file without a dataset \"tokens\"");
  const Hdf5Dataset& dataset = tokens->second;
  if (!is_vector_of(dataset, sizeof(uint16_t)))
    refuse_shard(file.path(), "has a dataset \"tokens\" that is not a 1-D array of uint16");
  if (dataset.elements() == 0 || dataset.offsets.empty()) refuse_shard(file.path(), "holds no tokens");

  TokenExtent extent{.offsets = {}, .chunk_tokens = dataset.chunk_shape.front(), .tokens = dataset.elements()};
  const int64_t chunks = (extent.tokens + extent.chunk_tokens - 1) / extent.chunk_tokens;
  if (static_cast<int64_t>(dataset.offsets.size()) != chunks)
    refuse_shard(file.path(), "has a dataset \"tokens\" with missing chunks");
  for (const auto& [number, offset] : dataset.offsets) extent.offsets.push_back(offset);
  if (hashes != datasets.end()) read_block_hashes(file, hashes->second, extent);
  return extent;
}

} // namespace gpt2
