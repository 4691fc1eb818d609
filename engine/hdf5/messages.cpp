#include "engine/hdf5/messages.h"

#include "engine/model/state.h"

namespace gpt2::hdf5 {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 48; // elements of a shape, bytes of a dataset
constexpr uint64_t kMostDimensions = 32;

uint64_t rounded_up(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

uint64_t checked_multiply(uint64_t a, uint64_t b) {
  require(a <= kMost && b <= kMost && (b == 0 || a <= kMost / b), "a shape of too many elements");
  return a * b;
}

} // namespace

// A datatype message [IV.A.2.d].
Hdf5Type read_type(const Bytes& bytes) {
  using namespace std::string_view_literals;
  constexpr auto kFloat32 = "\x20\x1F\0\4\0\0\0\0\0\x20\0\x17\x08\0\x17\x7F\0\0\0"sv,
                 kFloat64 = "\x20\x3F\0\x08\0\0\0\0\0\x40\0\x34\x0B\0\x34\xFF\3\0\0"sv;
  const uint64_t type_class = bytes.number(0, 1) & 0xF, flags = bytes.number(1, 3), size = bytes.number(4, 4);
  Hdf5Type type{.kind = Hdf5Type::Kind::other, .is_signed = (flags & 8) != 0, .size = static_cast<int64_t>(size)};
  constexpr uint64_t kInteger = 0, kReal = 1, kText = 3;
  if (type_class == kInteger && (flags & ~uint64_t{8}) == 0 && (size == 1 || size == 2 || size == 4 || size == 8) &&
      bytes.number(8, 2) == 0 && bytes.number(10, 2) == 8 * size)
    type.kind = Hdf5Type::Kind::integer;
  if (type_class == kReal && (bytes.is(1, kFloat32) || bytes.is(1, kFloat64))) type.kind = Hdf5Type::Kind::real;
  if (type_class == kText) type.kind = Hdf5Type::Kind::text;
  return type;
}

// A dataspace message [IV.A.2.b], version 1 or 2: the current extents; the maximum extents may follow.
std::vector<int64_t> read_shape(const Bytes& bytes) {
  const uint64_t version = bytes.number(0, 1), rank = bytes.number(1, 1);
  require((version == 1 || version == 2) && rank <= kMostDimensions, "a shape of an unknown version");
  if (version == 2 && bytes.number(3, 1) == 2) return {0}; // a null dataspace
  std::vector<int64_t> shape;
  uint64_t elements = 1;
  for (uint64_t i = 0; i < rank; ++i) {
    const uint64_t extent = bytes.number((version == 1 ? 8 : 4) + 8 * i, 8);
    elements = checked_multiply(elements, extent);
    shape.push_back(static_cast<int64_t>(extent));
  }
  return shape;
}

// [IV.A.2.g], version 1.
Link read_link(const Bytes& body) {
  const uint64_t flags = body.number(1, 1), length_bytes = uint64_t{1} << (flags & 3);
  const uint64_t type_at = 2, order_at = type_at + ((flags & 8) != 0 ? 1 : 0);
  const uint64_t length_at = order_at + ((flags & 4) != 0 ? 8 : 0) + ((flags & 0x10) != 0 ? 1 : 0);
  const uint64_t length = body.number(length_at, length_bytes), name_at = length_at + length_bytes;
  const std::string name(body.part(name_at, length).text());
  const bool is_hard = (flags & 8) == 0 || body.number(type_at, 1) == 0;
  return {name, is_hard ? body.number(name_at + length, 8) : kUndefined};
}

// [IV.A.2.i], version 3, or 4 of a contiguous dataset.
Layout read_layout(const Bytes& body) {
  const uint64_t version = body.number(0, 1), layout_class = body.number(1, 1);
  constexpr uint64_t kContiguous = 1, kChunked = 2;
  if (layout_class == kContiguous && (version == 3 || version == 4))
    return {false, body.number(2, 8), body.number(10, 8), {}};
  require(layout_class == kChunked, "a dataset that is neither contiguous nor chunked");
  require(version == 3, "chunks of a newer format (h5py: libver=\"earliest\")");
  Layout layout{true, body.number(3, 8), 0, {}};
  const uint64_t rank = body.number(2, 1); // dimensions + 1: the last is the element size
  require(rank >= 2 && rank <= kMostDimensions + 1, "chunks of no shape");
  uint64_t elements = 1;
  for (uint64_t i = 0; i + 1 < rank; ++i) {
    const uint64_t extent = body.number(11 + 4 * i, 4);
    require(extent > 0, "chunks of no shape");
    elements = checked_multiply(elements, extent);
    layout.chunk_shape.push_back(static_cast<int64_t>(extent));
  }
  return layout;
}

// [IV.A.2.m], version 1 to 3: name, type and shape (each padded in version 1), then the value.
void read_attribute(const Bytes& body, Hdf5Attributes& attributes) {
  const uint64_t version = body.number(0, 1), name_at = version == 3 ? 9 : 8;
  require(version >= 1 && version <= 3 && body.number(1, 1) == 0, "an attribute of an unknown version");
  const auto padded = [&](uint64_t bytes) { return version == 1 ? rounded_up(bytes) : bytes; };
  const uint64_t name_bytes = body.number(2, 2), type_bytes = body.number(4, 2), shape_bytes = body.number(6, 2);
  const uint64_t type_at = name_at + padded(name_bytes), shape_at = type_at + padded(type_bytes);
  const std::string_view name = body.part(name_at, name_bytes).text_before_zero();
  Hdf5Attribute attribute{read_type(body.part(type_at, type_bytes)), read_shape(body.part(shape_at, shape_bytes)), {}};
  attribute.value = body.part(shape_at + padded(shape_bytes), byte_count(attribute.shape, attribute.type)).copy();
  require(attributes.emplace(name, std::move(attribute)).second, "two attributes of one name");
}

uint64_t byte_count(const std::vector<int64_t>& shape, const Hdf5Type& type) {
  return checked_multiply(static_cast<uint64_t>(element_count(shape)), static_cast<uint64_t>(type.size));
}

} // namespace gpt2::hdf5
