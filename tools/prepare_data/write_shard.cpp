#include "tools/prepare_data/write_shard.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <vector>

#include "engine/hdf5/handle.h"
#include "engine/system/content_hash.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

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

// A contiguous 1-D dataset.
Hdf5Handle write_dataset(hid_t file, const char* name, hid_t file_type, hid_t memory_type, const void* data,
                         hsize_t count) {
  const Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties, false); // equal tokens give equal files
  Hdf5Handle dataset(H5Dcreate2(file, name, file_type, space, H5P_DEFAULT, properties, H5P_DEFAULT), H5Dclose);
  if (H5Dwrite(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) return Hdf5Handle(-1, H5Dclose);
  return dataset;
}

std::vector<uint64_t> hash_blocks(std::span<const std::byte> bytes) {
  std::vector<uint64_t> hashes;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<size_t>(kHdf5BlockBytes, bytes.size()))) {
    hashes.push_back(xxh64(bytes.first(std::min<size_t>(kHdf5BlockBytes, bytes.size()))));
  }
  return hashes;
}

bool write_contents(hid_t file, std::span<const uint16_t> tokens, const ShardMetadata& metadata) {
  const std::vector<uint64_t> hashes = hash_blocks(std::as_bytes(tokens));
  const Hdf5Handle data = write_dataset(file, "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT16, tokens.data(), tokens.size());
  const Hdf5Handle blocks =
      write_dataset(file, "block_hashes", H5T_STD_U64LE, H5T_NATIVE_UINT64, hashes.data(), hashes.size());
  return data.valid() && blocks.valid() && write_attribute(blocks, "block_bytes", kHdf5BlockBytes) &&
         write_attribute(file, "version", kHdf5ShardVersion) && write_attribute(file, "sealed", 1) &&
         write_attribute(file, "source", metadata.source) && write_attribute(file, "tokenizer", metadata.tokenizer);
}

Hdf5Seal seal_of(std::span<const std::byte> image, uint64_t token_offset, uint64_t token_bytes) {
  std::vector<std::byte> structure(image.begin(), image.begin() + static_cast<ptrdiff_t>(token_offset));
  structure.insert(structure.end(), image.begin() + static_cast<ptrdiff_t>(token_offset + token_bytes), image.end());
  Hdf5Seal seal{{}, token_offset, token_bytes, xxh64(structure), 0};
  std::memcpy(seal.magic, Hdf5Seal::kMagic.data(), sizeof seal.magic);
  seal.own_hash = seal.hash_of_fields();
  return seal;
}

// The bytes of the file, built in memory: HDF5 1.10 cannot close a file on a full disk and then crashes at exit,
// whereas PendingFile reports the error. Peak memory: twice the shard.
std::vector<std::byte> make_image(std::span<const uint16_t> tokens, const ShardMetadata& metadata) {
  const Hdf5Silence silent;
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fapl_core(access, tokens.size_bytes() + kHdf5BlockBytes, /*backing_store=*/false);
  H5Pset_libver_bounds(access, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST); // readable by every version of h5py
  const Hdf5Handle file(H5Fcreate("shard", H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose);
  const bool written = write_contents(file, tokens, metadata) && H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0;
  const Hdf5Handle dataset(H5Dopen2(file, "tokens", H5P_DEFAULT), H5Dclose);
  const haddr_t offset = H5Dget_offset(dataset);
  const ssize_t size = written && offset != HADDR_UNDEF ? H5Fget_file_image(file, nullptr, 0) : -1;
  std::vector<std::byte> image(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  if (size <= 0 || H5Fget_file_image(file, image.data(), image.size()) != size) {
    if (errno == ENOMEM) throw std::bad_alloc(); // Hdf5Silence has set errno to 0
    throw Error(ExitCode::disk, "HDF5 cannot make a shard of " + std::to_string(tokens.size()) + " tokens",
                "write smaller shards");
  }
  const Hdf5Seal seal = seal_of(image, offset, tokens.size_bytes());
  const auto bytes = std::as_bytes(std::span(&seal, 1));
  image.insert(image.end(), bytes.begin(), bytes.end());
  return image;
}

} // namespace

std::array<int32_t, kBinHeaderBytes / 4> bin_header(int64_t tokens) {
  return {kBinMagic, kBinVersion, static_cast<int32_t>(tokens)};
}

void write_bin_shard(const std::string& path, std::span<const uint16_t> tokens) {
  if (tokens.size() > INT32_MAX) {
    throw Error(ExitCode::disk, path + ": " + std::to_string(tokens.size()) + " tokens do not fit one .bin shard",
                "write smaller shards, or .h5");
  }
  const auto header = bin_header(static_cast<int64_t>(tokens.size()));
  PendingFile pending(path);
  File file = pending.create();
  file.write_at(0, std::as_bytes(std::span(header)));
  file.write_at(kBinHeaderBytes, std::as_bytes(tokens));
  pending.commit();
}

void write_hdf5_shard(const std::string& path, std::span<const uint16_t> tokens, const ShardMetadata& metadata) {
  if (tokens.empty()) throw Error(ExitCode::data, path + ": a shard needs at least one token");
  const std::vector<std::byte> image = make_image(tokens, metadata);
  PendingFile pending(path);
  pending.create().write_at(0, image);
  pending.commit();
}

ShardEntry describe_shard(const std::string& path, int64_t tokens) {
  const File file = File::open(path, ExitCode::disk);
  const int64_t bytes = file.size();
  const std::string name = std::filesystem::path(path).filename().string();
  return {name, bytes, tokens, hash_of_range(file, 0, bytes), hash_of_ends(file)};
}

} // namespace gpt2
