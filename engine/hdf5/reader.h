// Reads HDF5 files without libhdf5, which trusts the sizes and addresses in a file: damaged ones make it access memory
// beyond its buffers or allocate gigabytes. This reader checks that every address is inside the file and that no two
// objects overlap.
//
// Supports what h5py and libhdf5 write by default, in the format of HDF5 1.6 (superblock 0) and of 1.8 and later
// (superblocks 2 and 3, groups of at most 8 members): groups, attributes, contiguous datasets, and chunked datasets
// without filters. Not supported: compression, links between objects, chunks as libver="latest" indexes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/system/files.h"

namespace gpt2 {

struct Hdf5Bytes {
  std::function<void(int64_t offset, std::span<std::byte> out)> read; // `out` is inside the file; may throw
  int64_t size;
};
Hdf5Bytes hdf5_bytes(const File& file); // `file` must outlive the result

struct Hdf5Type {
  // Little-endian integers, IEEE floats, fixed-length text; `other`: compounds, enums, variable-length text,
  // big-endian.
  enum class Kind { integer, real, text, other };
  Kind kind = Kind::other;
  bool is_signed = false;
  int64_t size = 0; // bytes of an element
  bool operator==(const Hdf5Type&) const = default;
};

struct Hdf5Attribute {
  Hdf5Type type;
  std::vector<int64_t> shape; // {}: a scalar
  std::vector<std::byte> value;
};
using Hdf5Attributes = std::map<std::string, Hdf5Attribute>;

struct Hdf5Dataset {
  Hdf5Type type;
  std::vector<int64_t> shape;
  std::vector<int64_t> chunk_shape;   // a contiguous dataset is one chunk
  std::map<int64_t, int64_t> offsets; // of chunks in the file, by row-major number; absent: zeros
  Hdf5Attributes attributes;

  int64_t elements() const;
};

struct Hdf5Contents {
  Hdf5Attributes attributes;                   // of the root group
  std::map<std::string, Hdf5Dataset> datasets; // by path: "train/step"
};

struct Hdf5Damage { // thrown if a file cannot be read
  std::string what;
};

// Reads the structure, not the values of datasets. `follow` selects members of the root group; others may have any
// content. Null: all of them.
Hdf5Contents read_hdf5(const Hdf5Bytes& file, const std::function<bool(const std::string&)>& follow = nullptr);

// File ranges of elements [begin, begin + count) of a dataset, in row-major order.
struct Hdf5Range {
  int64_t offset; // in the file; -1: zeros, not stored
  int64_t bytes;
};
std::vector<Hdf5Range> ranges_of(const Hdf5Dataset& dataset, int64_t begin, int64_t count);

// One value of an integer or floating-point type of any size.
int64_t to_integer(const Hdf5Type& type, std::span<const std::byte> value);
double to_real(const Hdf5Type& type, std::span<const std::byte> value);

} // namespace gpt2
