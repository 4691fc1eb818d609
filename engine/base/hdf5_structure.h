// Is an HDF5 file what it says it is? Looked at before libhdf5 does, which believes the sizes and addresses that stand
// in a file: damaged ones make it read and write beyond its buffers, allocate gigabytes, or take one thing for another.
//
// What passes is plain: the oldest format, which libhdf5 1 and h5py write unless told otherwise (we tell it to);
// groups, contiguous datasets and attributes of integers, IEEE floats and text. Every size agrees with what it is the
// size of, every address is in the file, and no two things share a byte. Values are not looked at: they have hashes of
// their own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "engine/base/files.h"

namespace gpt2 {

struct Hdf5Bytes {
  std::function<void(int64_t offset, std::span<std::byte> out)> read; // inside the file; may throw
  int64_t size;
};
Hdf5Bytes hdf5_bytes(const File& file); // which must outlive them

// Why not, or nothing. follow: whether a member of the root group of this name is looked at, too; what is not followed
// must not be opened.
std::optional<std::string> hdf5_damage(const Hdf5Bytes& file, const std::function<bool(const std::string&)>& follow);
std::optional<std::string> hdf5_damage(const Hdf5Bytes& file); // all of it

} // namespace gpt2
