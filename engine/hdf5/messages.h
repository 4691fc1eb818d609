// Messages of HDF5 object headers. Names are those of "HDF5 File Format Specification Version 3.0", section in
// brackets. Errors are thrown as Hdf5Damage.
#pragma once

#include <cstring>
#include <string_view>

#include "engine/hdf5/reader.h"

namespace gpt2::hdf5 {

constexpr uint64_t kUndefined = UINT64_MAX; // "undefined address"

inline void require(bool holds, const char* what) {
  if (!holds) throw Hdf5Damage{what};
}

// Little-endian view of bytes in memory; an access beyond their end throws Hdf5Damage.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t size() const { return bytes_.size(); }
  Bytes part(uint64_t begin, uint64_t size) const {
    require(begin <= bytes_.size() && size <= bytes_.size() - begin, "a size is beyond its end");
    return Bytes(bytes_.subspan(begin, size));
  }
  Bytes from(uint64_t begin) const { return part(begin, begin <= size() ? size() - begin : 0); }
  uint64_t number(uint64_t at, uint64_t size) const {
    uint64_t value = 0;
    std::memcpy(&value, part(at, size).bytes_.data(), size);
    return value;
  }
  bool is(uint64_t at, std::string_view expected) const { return part(at, expected.size()).text() == expected; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  std::string_view text_before_zero() const {
    const size_t zero = text().find('\0');
    require(zero != std::string_view::npos, "a name does not end");
    return text().substr(0, zero);
  }
  std::vector<std::byte> copy() const { return {bytes_.begin(), bytes_.end()}; }

 private:
  std::span<const std::byte> bytes_;
};

struct Link {
  std::string name;
  uint64_t address; // kUndefined: not a hard link
};
struct Layout {
  bool chunked;
  uint64_t address, bytes; // bytes: contiguous only
  std::vector<int64_t> chunk_shape;
};

Hdf5Type read_type(const Bytes& bytes);
std::vector<int64_t> read_shape(const Bytes& bytes);
Link read_link(const Bytes& body);
Layout read_layout(const Bytes& body);
void read_attribute(const Bytes& body, Hdf5Attributes& attributes); // adds one entry

uint64_t byte_count(const std::vector<int64_t>& shape, const Hdf5Type& type);

} // namespace gpt2::hdf5
