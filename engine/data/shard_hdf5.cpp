// HDF5 shards:
//   /tokens        uint16 (count), contiguous as we write it; chunked without compression is read, too
//   /block_hashes  uint64 (blocks), XXH64 of each MiB of the tokens' bytes; attribute block_bytes
//   attributes of /: version, source, tokenizer, sealed
// and behind the HDF5 file, which does not mind, its seal.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#include "engine/data/shard.h"
#include "engine/data/shard_formats.h"
#include "engine/hdf5/handle.h"
#include "engine/hdf5/reader.h"
#include "engine/system/content_hash.h"

namespace gpt2 {

namespace {

constexpr uint64_t kVersion = 1;
constexpr uint64_t kBlockBytes = 1 << 20;
constexpr uint64_t kLargestBlockBytes = 64 << 20; // that a reader holds in memory at once

// The hash of a file's structure. The tokens have hashes of their own.
struct Seal {
  char magic[8];
  uint64_t token_offset, token_bytes;
  uint64_t structure_hash; // XXH64 of all that is before the seal but the tokens
  uint64_t own_hash;       // XXH64 of the fields above
};
static_assert(sizeof(Seal) == 40);
constexpr std::string_view kSealMagic = "GPT2SEAL";
constexpr int64_t kLargestStructure = 64 << 20; // bytes: the hashes of 8 TB

// libhdf5 cleans up when a program ends, and crashes there if malloc has failed before. Every file is closed by then.
// The call must come before any other of libhdf5.
__attribute__((constructor)) void leave_without_cleanup() { H5dont_atexit(); }

uint64_t own_hash(const Seal& seal) {
  return xxh64(std::as_bytes(std::span(&seal, 1)).first(offsetof(Seal, own_hash)));
}

[[noreturn]] void throw_data_error(const std::string& path, const std::string& what) {
  throw Error(ExitCode::data, path + " " + what, "make or copy the shard again");
}

bool fits(const Seal& seal, uint64_t bytes_before) {
  return seal.own_hash == own_hash(seal) && seal.token_offset <= bytes_before &&
         seal.token_bytes <= bytes_before - seal.token_offset &&
         bytes_before - seal.token_bytes <= static_cast<uint64_t>(kLargestStructure);
}

bool has_its_structure(const Seal& seal, const File& file, uint64_t bytes_before) {
  std::vector<std::byte> structure(bytes_before - seal.token_bytes);
  const std::span<std::byte> all(structure);
  file.read_at(0, all.first(seal.token_offset));
  file.read_at(static_cast<int64_t>(seal.token_offset + seal.token_bytes), all.subspan(seal.token_offset));
  return xxh64(structure) == seal.structure_hash;
}

// Does it have a seal? One that does not fit is an error.
bool is_sealed(const File& file) {
  const int64_t end = file.size() - static_cast<int64_t>(sizeof(Seal));
  if (end < 0) return false;
  Seal seal;
  file.read_at(end, std::as_writable_bytes(std::span(&seal, 1)));
  if (std::string_view(seal.magic, sizeof seal.magic) != kSealMagic) return false;
  const auto before = static_cast<uint64_t>(end);
  if (!fits(seal, before) || !has_its_structure(seal, file, before))
    throw_data_error(file.path(), "is damaged: what is around its tokens does not have the hash of its seal");
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

// Counts and sizes of a damaged file are checked before they are believed: `tokens` fit into the file already.
void read_block_hashes(const File& file, const Hdf5Dataset& dataset, TokenExtent& extent) {
  const uint64_t block_bytes = read_attribute(dataset.attributes, "block_bytes", kBlockBytes);
  if (block_bytes < 2 || block_bytes % 2 != 0 || block_bytes > kLargestBlockBytes)
    throw_data_error(file.path(), "is damaged: its blocks cannot have " + std::to_string(block_bytes) + " bytes");
  extent.block_tokens = static_cast<int64_t>(block_bytes / 2);
  const int64_t blocks = (extent.tokens + extent.block_tokens - 1) / extent.block_tokens;
  if (!is_vector_of(dataset, sizeof(uint64_t)) || dataset.elements() != blocks) {
    throw_data_error(file.path(), "has " + std::to_string(dataset.elements()) + " block hashes where " +
                                      std::to_string(blocks) + " of uint64 were expected");
  }
  extent.block_hashes.resize(static_cast<size_t>(blocks));
  auto out = std::as_writable_bytes(std::span(extent.block_hashes));
  for (const Hdf5Range& range : ranges_of(dataset, 0, blocks)) {
    if (range.offset >= 0) file.read_at(range.offset, out.first(static_cast<size_t>(range.bytes)));
    out = out.subspan(static_cast<size_t>(range.bytes));
  }
}

bool write_attribute(hid_t object, const char* name, uint64_t value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute(H5Acreate2(object, name, H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  return H5Awrite(attribute, H5T_NATIVE_UINT64, &value) >= 0;
}

bool write_attribute(hid_t object, const char* name, const std::string& value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose); // variable-length UTF-8: a str in h5py
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  const Hdf5Handle attribute(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  const char* text = value.c_str();
  return H5Awrite(attribute, type, &text) >= 0;
}

// A contiguous 1-D dataset, its values written.
Hdf5Handle write_dataset(hid_t file, const char* name, hid_t file_type, hid_t memory_type, const void* data,
                         hsize_t count) {
  const Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Hdf5Handle plan(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(plan, false); // the same tokens make the same file, whenever
  Hdf5Handle dataset(H5Dcreate2(file, name, file_type, space, H5P_DEFAULT, plan, H5P_DEFAULT), H5Dclose);
  if (H5Dwrite(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) return Hdf5Handle(-1, H5Dclose);
  return dataset;
}

std::vector<uint64_t> hash_blocks(std::span<const std::byte> bytes) {
  std::vector<uint64_t> hashes;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<size_t>(kBlockBytes, bytes.size()))) {
    hashes.push_back(xxh64(bytes.first(std::min<size_t>(kBlockBytes, bytes.size()))));
  }
  return hashes;
}

bool write_contents(hid_t file, std::span<const uint16_t> tokens, const ShardMetadata& metadata) {
  const std::vector<uint64_t> hashes = hash_blocks(std::as_bytes(tokens));
  const Hdf5Handle data = write_dataset(file, "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, tokens.data(), tokens.size());
  const Hdf5Handle blocks =
      write_dataset(file, "block_hashes", H5T_STD_U64LE, H5T_NATIVE_UINT64, hashes.data(), hashes.size());
  return data.valid() && blocks.valid() && write_attribute(blocks, "block_bytes", kBlockBytes) &&
         write_attribute(file, "version", kVersion) && write_attribute(file, "sealed", 1) &&
         write_attribute(file, "source", metadata.source) && write_attribute(file, "tokenizer", metadata.tokenizer);
}

// The seal of a file that ends here.
Seal seal_of(std::span<const std::byte> image, uint64_t token_offset, uint64_t token_bytes) {
  std::vector<std::byte> structure(image.begin(), image.begin() + static_cast<ptrdiff_t>(token_offset));
  structure.insert(structure.end(), image.begin() + static_cast<ptrdiff_t>(token_offset + token_bytes), image.end());
  Seal seal{{}, token_offset, token_bytes, xxh64(structure), 0};
  std::memcpy(seal.magic, kSealMagic.data(), sizeof seal.magic);
  seal.own_hash = own_hash(seal);
  return seal;
}

// The bytes of the file, made in memory: HDF5 1.10 cannot close a file on a full disk and crashes at exit if it
// tried, whereas our own write reports it. Costs twice the shard in memory while it lasts.
std::vector<std::byte> make_image(std::span<const uint16_t> tokens, const ShardMetadata& metadata) {
  const Hdf5Silence silent;
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fapl_core(access, tokens.size_bytes() + kBlockBytes, /*backing_store=*/false);
  H5Pset_libver_bounds(access, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST); // what every version of h5py reads
  const Hdf5Handle file(H5Fcreate("shard", H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose);
  const bool written = write_contents(file, tokens, metadata) && H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0;
  const Hdf5Handle dataset(H5Dopen2(file, "tokens", H5P_DEFAULT), H5Dclose);
  const haddr_t offset = H5Dget_offset(dataset);
  const ssize_t size = written && offset != HADDR_UNDEF ? H5Fget_file_image(file, nullptr, 0) : -1;
  std::vector<std::byte> image(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  if (size <= 0 || H5Fget_file_image(file, image.data(), image.size()) != size) {
    if (errno == ENOMEM) throw std::bad_alloc(); // since `silent` began
    throw Error(ExitCode::disk, "HDF5 cannot make a shard of " + std::to_string(tokens.size()) + " tokens",
                "write smaller shards");
  }
  const Seal seal = seal_of(image, offset, tokens.size_bytes());
  const auto bytes = std::as_bytes(std::span(&seal, 1));
  image.insert(image.end(), bytes.begin(), bytes.end());
  return image;
}

Hdf5Contents read_structure(const File& file) {
  try {
    const auto wanted = [](const std::string& name) { return name == "tokens" || name == "block_hashes"; };
    return read_hdf5(hdf5_bytes(file), wanted);
  } catch (const Hdf5Damage& damage) {
    throw_data_error(file.path(), "is a truncated or damaged HDF5 file, or not as plain as shards are: " + damage.what);
  }
}

} // namespace

TokenExtent find_hdf5_tokens(const File& file) {
  const bool sealed = is_sealed(file); // or made by somebody else, or by a program before seals
  const auto [attributes, datasets] = read_structure(file);
  if (!sealed && read_attribute(attributes, "sealed", 0) != 0)
    throw_data_error(file.path(), "is truncated or damaged: its seal is missing");
  if (const uint64_t version = read_attribute(attributes, "version", kVersion); version != kVersion)
    throw_data_error(file.path(), "has version " + std::to_string(version) + " of the shard format, not 1");
  const auto tokens = datasets.find("tokens"), hashes = datasets.find("block_hashes");
  if (tokens == datasets.end()) throw_data_error(file.path(), "is an HDF5 file without a dataset \"tokens\"");
  const Hdf5Dataset& dataset = tokens->second;
  if (!is_vector_of(dataset, sizeof(uint16_t)))
    throw_data_error(file.path(), "has a dataset \"tokens\" that is not one array of uint16");
  if (dataset.elements() == 0 || dataset.offsets.empty()) throw_data_error(file.path(), "holds no tokens");

  TokenExtent extent{.offsets = {}, .chunk_tokens = dataset.chunk_shape.front(), .tokens = dataset.elements()};
  const int64_t chunks = (extent.tokens + extent.chunk_tokens - 1) / extent.chunk_tokens;
  if (static_cast<int64_t>(dataset.offsets.size()) != chunks)
    throw_data_error(file.path(), "has a dataset \"tokens\" of which a part was never written");
  for (const auto& [number, offset] : dataset.offsets) extent.offsets.push_back(offset);
  if (hashes != datasets.end()) read_block_hashes(file, hashes->second, extent);
  return extent;
}

void write_hdf5_shard(const std::string& path, std::span<const uint16_t> tokens, const ShardMetadata& metadata) {
  if (tokens.empty()) throw Error(ExitCode::data, path + ": a shard needs at least one token");
  const std::vector<std::byte> image = make_image(tokens, metadata);
  PendingFile pending(path);
  pending.create().write_at(0, image);
  pending.commit();
}

void verify_hdf5_shard(const std::string& path) {
  const std::unique_ptr<TokenSource> shard = open_shard(path);
  const File file = File::open(path, ExitCode::data);
  char magic[kHdf5Magic.size()] = {};
  file.read_at(0, std::as_writable_bytes(std::span(magic)));
  if (std::string_view(magic, sizeof magic) != kHdf5Magic || find_hdf5_tokens(file).block_hashes.empty())
    throw_data_error(path, "has no dataset \"block_hashes\" to be verified by");
  std::vector<uint16_t> tokens(kBlockBytes / 2);
  for (int64_t first = 0; first < shard->tokens(); first += static_cast<int64_t>(tokens.size())) {
    const int64_t count = std::min(static_cast<int64_t>(tokens.size()), shard->tokens() - first);
    shard->read(first, std::span(tokens).first(static_cast<size_t>(count)));
  }
}

} // namespace gpt2
