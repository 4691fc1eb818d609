// The names are those of "HDF5 File Format Specification Version 2.0", section in brackets.
#include "engine/base/hdf5_structure.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

namespace gpt2 {
namespace {

constexpr uint64_t kUndefined = UINT64_MAX;         // an address that is none
constexpr int kLeafEntries = 8, kTreeChildren = 32; // twice the "K" of the superblock, which nobody changes
constexpr uint64_t kSuperblockBytes = 96, kTreeBytes = 24 + 8 * (2 * kTreeChildren + 1),
                   kLeafBytes = 8 + 40 * kLeafEntries;
constexpr uint64_t kHeaderPrefix = 16, kMessagePrefix = 8, kHeapPrefix = 32;
constexpr int kDeepestTree = 8, kDeepestGroup = 16;
constexpr uint64_t kLargestHeader = 16 << 20, kLargestHeap = 64 << 20, kLargestText = 64 << 20; // bytes
constexpr uint64_t kMostElements = uint64_t{1} << 48;

uint64_t rounded_up(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// What is wrong, on its way out.
struct Damage {
  std::string what;
};
void require(bool holds, const char* what) {
  if (!holds) throw Damage{what};
}

// Bytes that have been read, little-endian; a look beyond them is damage.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t size() const { return bytes_.size(); }
  Bytes part(uint64_t begin, uint64_t size) const {
    require(begin <= bytes_.size() && size <= bytes_.size() - begin, "a size leads beyond its end");
    return Bytes(bytes_.subspan(begin, size));
  }
  Bytes from(uint64_t begin) const { return part(begin, begin <= size() ? size() - begin : 0); }
  uint64_t number(uint64_t at, int size) const {
    uint64_t value = 0;
    std::memcpy(&value, part(at, static_cast<uint64_t>(size)).bytes_.data(), static_cast<size_t>(size));
    return value;
  }
  bool is(uint64_t at, std::span<const uint8_t> expected) const {
    return std::memcmp(part(at, expected.size()).bytes_.data(), expected.data(), expected.size()) == 0;
  }
  bool is(uint64_t at, std::string_view expected) const {
    return std::memcmp(part(at, expected.size()).bytes_.data(), expected.data(), expected.size()) == 0;
  }
  // Text with a zero behind it.
  std::string text(uint64_t at) const {
    const Bytes rest = from(at);
    const auto zero = std::ranges::find(rest.bytes_, std::byte{0});
    require(zero != rest.bytes_.end(), "a name does not end");
    return {reinterpret_cast<const char*>(rest.bytes_.data()), static_cast<size_t>(zero - rest.bytes_.begin())};
  }

 private:
  std::span<const std::byte> bytes_;
};

// ---- types and spaces, which datasets and attributes have ----

struct Type {
  uint64_t encoded; // bytes of its description
  uint64_t size;    // bytes of an element
};

// A datatype message [IV.A.2.d], version 1.
Type read_type(const Bytes& bytes) {
  constexpr std::array<uint8_t, 20> kFloat32 = {0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0};
  constexpr std::array<uint8_t, 20> kFloat64 = {0x11, 0x20, 63, 0,  8, 0,  0,    0, 0, 0,
                                                64,   0,    52, 11, 0, 52, 0xFF, 3, 0, 0};
  constexpr std::array<uint8_t, 12> kCharacter = {0x10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0};
  const uint64_t kind = bytes.number(0, 1), flags = bytes.number(1, 3), size = bytes.number(4, 4);
  switch (kind) {
    case 0x10: { // integer: its sign is all that may differ; all of its bits count
      require((flags & ~uint64_t{8}) == 0, "an integer of a kind that nobody writes");
      require(size == 1 || size == 2 || size == 4 || size == 8, "an integer of a size that there is not");
      require(bytes.number(8, 2) == 0 && bytes.number(10, 2) == 8 * size, "an integer with unused bits");
      return {12, size};
    }
    case 0x11:
      require(bytes.is(0, kFloat32) || bytes.is(0, kFloat64), "a floating-point number that is not IEEE's");
      return {20, size};
    case 0x13: // text: padding below, character set above
      require((flags & 0xF) <= 2 && flags >> 4 <= 1 && size >= 1 && size <= kLargestText,
              "text of a kind that there is not");
      return {8, size};
    case 0x19: // text of any length: of characters, 16 bytes that say where it is
      require((flags & 0xF) == 1 && (flags >> 4 & 0xF) <= 2 && flags >> 8 <= 1 && size == 16 && bytes.is(8, kCharacter),
              "text of a kind that there is not");
      return {20, size};
    default:
      throw Damage{"values that are neither numbers nor text"};
  }
}

struct Space {
  uint64_t encoded;
  uint64_t elements;
};

// A dataspace message [IV.A.2.b], version 1: the current extents, then the largest, which are the same.
Space read_space(const Bytes& bytes) {
  const uint64_t rank = bytes.number(1, 1), flags = bytes.number(2, 1);
  require(bytes.number(0, 1) == 1 && rank <= 4 && flags <= 1 && bytes.number(3, 1) == 0 && bytes.number(4, 4) == 0,
          "a shape of a kind that nobody writes");
  uint64_t elements = 1;
  for (uint64_t i = 0; i < rank; ++i) {
    const uint64_t extent = bytes.number(8 + 8 * i, 8);
    require(extent <= kMostElements && (extent == 0 || elements <= kMostElements / extent),
            "a shape of too many elements");
    require(flags == 0 || bytes.number(8 + 8 * (rank + i), 8) == extent, "a shape that could grow");
    elements *= extent;
  }
  return {8 + 8 * rank * (1 + flags), elements};
}

// ---- the file ----

class Walk {
 public:
  using Follow = std::function<bool(const std::string&)>;
  Walk(const Hdf5Bytes& file, const Follow& follow) : file_(file), follow_(follow) {}

  // [II.A], version 0.
  void superblock() {
    constexpr std::array<uint8_t, 24> kBegin = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n', 0, 0, 0, 0,
                                                0,    8,   8,   0,   4,    0,    16,   0,    0, 0, 0, 0};
    require(file_.size >= static_cast<int64_t>(kSuperblockBytes), "it is truncated");
    end_ = static_cast<uint64_t>(file_.size);
    const Owned block = take(0, kSuperblockBytes);
    const Bytes view = block.view();
    require(view.is(0, std::span(kBegin).first(8)), "it does not begin as an HDF5 file");
    require(view.is(0, kBegin), "it is not of the oldest format (h5py: libver=\"earliest\")");
    require(view.number(24, 8) == 0 && view.number(32, 8) == kUndefined && view.number(48, 8) == kUndefined,
            "its first bytes are not those of a file by itself");
    require(view.number(40, 8) <= end_, "it is truncated");
    end_ = view.number(40, 8);
    entry(view.from(56), 0);
    disjoint();
  }

 private:
  struct Owned {
    std::vector<std::byte> bytes;
    Bytes view() const { return Bytes(bytes); }
  };

  Owned read(uint64_t address, uint64_t size) const {
    Owned out{std::vector<std::byte>(size)};
    if (size > 0) file_.read(static_cast<int64_t>(address), out.bytes);
    return out;
  }
  // Bytes that belong to one thing alone.
  void claim(uint64_t address, uint64_t size) {
    require(address <= end_ && size <= end_ - address, "an address leads beyond its end");
    if (size > 0) require(claimed_.emplace(address, size).second, "two things have one address");
  }
  Owned take(uint64_t address, uint64_t size) {
    claim(address, size);
    return read(address, size);
  }
  void disjoint() const {
    uint64_t free = 0;
    for (const auto& [address, size] : claimed_) {
      require(address >= free, "two things share bytes");
      free = address + size;
    }
  }

  struct Members { // of a group: where its names are
    uint64_t tree = 0, heap = 0;
    bool operator==(const Members&) const = default;
  };

  // A symbol table entry [III.C]: what it leads to. A group's members may be named here once more.
  void entry(const Bytes& bytes, int depth) {
    const uint64_t cache = bytes.number(16, 4);
    require(cache <= 1 && bytes.number(20, 4) == 0, "a link of a kind that nobody writes");
    const std::optional<Members> members = object(bytes.number(8, 8), depth);
    if (cache == 1)
      require(members && *members == Members{bytes.number(24, 8), bytes.number(32, 8)}, "a group that is none");
  }

  struct Object {
    std::optional<Members> group;
    std::optional<Type> type;
    std::optional<Space> space;
    std::optional<std::pair<uint64_t, uint64_t>> data; // address and bytes
    bool has_fill = false, has_time = false;
  };

  template <class T>
  static void set(std::optional<T>& to, const T& value) {
    require(!to, "an object says something twice");
    to = value;
  }
  static void set(bool& to) {
    require(!to, "an object says something twice");
    to = true;
  }

  // An object header [IV.A.1.a], version 1: a group, or a dataset.
  std::optional<Members> object(uint64_t address, int depth) {
    require(depth <= kDeepestGroup, "groups in groups without end");
    const Owned prefix = take(address, kHeaderPrefix);
    const Bytes view = prefix.view();
    require(view.number(0, 2) == 1 && view.number(4, 4) == 1, "an object header of a kind that nobody writes");
    Object found;
    uint64_t messages = 0, total = 0;
    std::vector<std::pair<uint64_t, uint64_t>> chunks = {{address + kHeaderPrefix, view.number(8, 4)}};
    for (size_t i = 0; i < chunks.size(); ++i) { // more are found on the way
      const auto [at, size] = chunks[i];
      total += size;
      require(size <= kLargestHeader && total <= kLargestHeader, "an object header without end");
      const Owned chunk = take(at, size);
      messages += read_messages(chunk.view(), found, chunks);
    }
    require(messages == view.number(2, 2), "an object header with another number of messages");
    if (found.group) {
      require(!found.type && !found.space && !found.data && !found.has_fill, "a group that is a dataset");
      members(*found.group, depth);
      return found.group;
    }
    require(found.type && found.space && found.data, "a dataset that is not complete");
    const auto [data, bytes] = *found.data;
    require(bytes == found.space->elements * found.type->size, "a dataset of another size than its shape's");
    if (data != kUndefined) claim(data, bytes);
    return std::nullopt;
  }

  uint64_t read_messages(const Bytes& chunk, Object& found, std::vector<std::pair<uint64_t, uint64_t>>& chunks) {
    uint64_t count = 0, at = 0;
    for (; at < chunk.size(); ++count) {
      const uint64_t kind = chunk.number(at, 2), size = chunk.number(at + 2, 2), flags = chunk.number(at + 4, 1);
      require(size % 8 == 0 && flags <= 1, "a message of a kind that nobody writes");
      message(kind, chunk.part(at + kMessagePrefix, size), found, chunks);
      at += kMessagePrefix + size;
    }
    return count;
  }

  void message(uint64_t kind, const Bytes& body, Object& found, std::vector<std::pair<uint64_t, uint64_t>>& chunks) {
    const auto has_size = [&](uint64_t bytes) {
      require(body.size() == rounded_up(bytes), "a message of another size");
    };
    switch (kind) {
      case 0x00: // room that is not used
        return;
      case 0x01: {
        const Space space = read_space(body);
        has_size(space.encoded);
        return set(found.space, space);
      }
      case 0x03: {
        const Type type = read_type(body);
        has_size(type.encoded);
        return set(found.type, type);
      }
      case 0x05: // fill value, version 2: none, or zeros
        has_size(8);
        require(body.number(0, 1) == 2 && body.number(1, 1) >= 1 && body.number(1, 1) <= 3 && body.number(2, 1) <= 2 &&
                    body.number(3, 1) <= 1 && body.number(4, 4) == 0,
                "a fill value of a kind that nobody writes");
        return set(found.has_fill);
      case 0x08: // layout, version 3, contiguous
        has_size(18);
        require(body.number(0, 1) == 3 && body.number(1, 1) == 1, "a dataset that is not contiguous");
        return set(found.data, std::pair(body.number(2, 8), body.number(10, 8)));
      case 0x0C:
        return attribute(body);
      case 0x10: // it goes on elsewhere
        has_size(16);
        chunks.emplace_back(body.number(0, 8), body.number(8, 8));
        return;
      case 0x11:
        has_size(16);
        return set(found.group, Members{body.number(0, 8), body.number(8, 8)});
      case 0x12: // when it was changed
        has_size(8);
        require(body.number(0, 4) == 1, "a time of a kind that nobody writes");
        return set(found.has_time);
      default:
        throw Damage{"a message of a kind that nobody writes"};
    }
  }

  // [IV.A.2.m], version 1: name, type and shape, each padded, then the value.
  static void attribute(const Bytes& body) {
    const uint64_t name = body.number(2, 2), type_bytes = body.number(4, 2), space_bytes = body.number(6, 2);
    require(body.number(0, 2) == 1 && name > 0, "an attribute of a kind that nobody writes");
    const uint64_t type_at = 8 + rounded_up(name), space_at = type_at + rounded_up(type_bytes);
    const uint64_t value_at = space_at + rounded_up(space_bytes);
    require(body.part(8, name).text(0).size() == name - 1, "an attribute's name has another length");
    const Type type = read_type(body.part(type_at, rounded_up(type_bytes)));
    const Space space = read_space(body.part(space_at, rounded_up(space_bytes)));
    require(type.encoded == type_bytes && space.encoded == space_bytes, "an attribute whose parts have other sizes");
    require(space.elements <= body.size() && body.size() == rounded_up(value_at + space.elements * type.size),
            "an attribute of another size than its value's");
  }

  // ---- a group's members: a tree of leaves with entries, and a heap with their names ----

  void members(const Members& group, int depth) {
    const Owned names = heap(group.heap);
    tree(group.tree, -1, names.view(), depth);
  }

  // A local heap [III.D]: its data. What is free in it is a list.
  Owned heap(uint64_t address) {
    const Owned prefix = take(address, kHeapPrefix);
    const Bytes view = prefix.view();
    require(view.is(0, "HEAP") && view.number(4, 4) == 0, "a heap that is none");
    const uint64_t size = view.number(8, 8);
    require(size <= kLargestHeap && size % 8 == 0, "a heap of a size that nobody writes");
    Owned data = take(view.number(24, 8), size);
    constexpr uint64_t kLast = 1, kBlock = 16;
    uint64_t blocks = 0;
    for (uint64_t at = view.number(16, 8); at != kLast; at = data.view().number(at, 8)) {
      require(at % 8 == 0 && ++blocks <= size / kBlock, "a heap's list of free blocks is damaged");
      const uint64_t bytes = data.view().number(at + 8, 8);
      require(bytes >= kBlock && bytes % 8 == 0 && at <= size && bytes <= size - at,
              "a heap's list of free blocks is damaged");
    }
    return data;
  }

  // A node [III.A.1]. level: what its parent says it has; -1: of the root.
  void tree(uint64_t address, int level, const Bytes& names, int depth) {
    const Owned node = take(address, kTreeBytes);
    const Bytes view = node.view();
    const auto own = static_cast<int>(view.number(5, 1));
    const uint64_t children = view.number(6, 2);
    require(view.is(0, "TREE") && view.number(4, 1) == 0 && own <= kDeepestTree && children <= kTreeChildren &&
                (level < 0 || own == level),
            "a group's tree is damaged");
    for (const uint64_t sibling : {view.number(8, 8), view.number(16, 8)})
      require(sibling == kUndefined || (level >= 0 && sibling < end_), "a group's tree is damaged");
    for (uint64_t i = 0; i <= children; ++i) names.text(view.number(24 + 16 * i, 8));
    for (uint64_t i = 0; i < children; ++i) {
      const uint64_t child = view.number(24 + 8 + 16 * i, 8);
      own > 0 ? tree(child, own - 1, names, depth) : leaf(child, names, depth);
    }
  }

  // A symbol table node [III.B].
  void leaf(uint64_t address, const Bytes& names, int depth) {
    const Owned node = take(address, kLeafBytes);
    const Bytes view = node.view();
    const uint64_t entries = view.number(6, 2);
    require(view.is(0, "SNOD") && view.number(4, 2) == 1 && entries <= kLeafEntries,
            "a group's list of members is damaged");
    for (uint64_t i = 0; i < entries; ++i) {
      const Bytes member = view.part(8 + 40 * i, 40);
      const std::string name = names.text(member.number(0, 8));
      require(!name.empty(), "a member without a name");
      if (depth > 0 || follow_(name)) entry(member, depth + 1);
    }
  }

  const Hdf5Bytes& file_;
  const Follow& follow_;
  uint64_t end_ = 0;
  std::map<uint64_t, uint64_t> claimed_; // bytes by address
};

} // namespace

std::optional<std::string> hdf5_damage(const Hdf5Bytes& file, const std::function<bool(const std::string&)>& follow) {
  try {
    Walk(file, follow).superblock();
    return std::nullopt;
  } catch (const Damage& damage) {
    return damage.what;
  }
}

Hdf5Bytes hdf5_bytes(const File& file) {
  return {[&file](int64_t offset, std::span<std::byte> out) { file.read_at(offset, out); }, file.size()};
}

std::optional<std::string> hdf5_damage(const Hdf5Bytes& file) {
  return hdf5_damage(file, [](const std::string&) { return true; });
}

} // namespace gpt2
