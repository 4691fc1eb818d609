// Names are those of "HDF5 File Format Specification Version 3.0", section in brackets.
#include "engine/hdf5/reader.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "engine/hdf5/messages.h"
#include "engine/model/state.h"

namespace gpt2 {
namespace {

using namespace hdf5;

constexpr int kLeafEntries = 8, kTreeChildren = 32; // twice the default "K" of the superblock
constexpr uint64_t kOldSuperblockBytes = 96, kSuperblockBytes = 48, kTreePrefix = 24, kHeapPrefix = 32,
                   kLeafBytes = 8 + 40 * kLeafEntries, kChecksumBytes = 4;
constexpr int kDeepestTree = 8, kDeepestGroup = 16;
constexpr uint64_t kLargestHeader = 16 << 20, kLargestHeap = 64 << 20; // bytes

class Reader {
 public:
  using Follow = std::function<bool(const std::string&)>;
  Reader(const Hdf5Bytes& file, const Follow& follow) : file_(file), follow_(follow) {}

  Hdf5Contents contents() {
    object(superblock(), "", 0);
    uint64_t free = 0;
    for (const auto& [address, size] : claimed_) {
      require(address >= free, "two objects share bytes");
      free = address + size;
    }
    return std::move(contents_);
  }

 private:
  struct Owned {
    std::vector<std::byte> bytes;
    Bytes view() const { return Bytes(bytes); }
  };
  Owned read(uint64_t address, uint64_t size) const {
    require(address <= end_ && size <= end_ - address, "an address is beyond its end");
    Owned out{std::vector<std::byte>(size)};
    if (size > 0) file_.read(static_cast<int64_t>(address), out.bytes);
    return out;
  }
  // Records that one object owns these bytes; contents() checks that claims do not overlap.
  void claim(uint64_t address, uint64_t size) {
    require(address <= end_ && size <= end_ - address, "an address is beyond its end");
    if (size > 0) require(claimed_.emplace(address, size).second, "two objects have one address");
  }
  Owned take(uint64_t address, uint64_t size) {
    claim(address, size);
    return read(address, size);
  }

  // [II.A, II.B]: the address of the root group.
  uint64_t superblock() {
    using namespace std::string_view_literals;
    require(file_.size >= static_cast<int64_t>(kSuperblockBytes), "it is truncated");
    end_ = static_cast<uint64_t>(file_.size);
    const Owned start = read(0, kSuperblockBytes);
    const uint64_t version = start.view().number(8, 1);
    require(start.view().is(0, "\x89HDF\r\n\x1A\n"), "it does not begin as an HDF5 file");
    require(version == 0 || version == 2 || version == 3, "a superblock of an unknown version");
    const Owned block = take(0, version == 0 ? kOldSuperblockBytes : kSuperblockBytes);
    const Bytes view = block.view();
    require(version == 0 ? view.is(9, "\0\0\0\0\x08\x08\0\4\0\x10\0\0\0\0\0"sv) : view.is(9, "\x08\x08"sv),
            "a superblock with unusual sizes");
    const uint64_t base_at = version == 0 ? 24 : 12, end_at = version == 0 ? 40 : 28, root_at = version == 0 ? 64 : 36;
    require(view.number(base_at, 8) == 0, "it does not begin at its first byte");
    require(view.number(end_at, 8) <= end_, "it is truncated");
    end_ = view.number(end_at, 8);
    return view.number(root_at, 8);
  }

  // ---- an object: a group or a dataset ----

  struct SymbolTable {
    uint64_t tree, heap;
  };
  struct Object {
    bool is_group = false;
    std::optional<SymbolTable> members; // of a group of the old format
    std::vector<Link> links;            // of a group of the newer one
    std::optional<Hdf5Type> type;
    std::optional<std::vector<int64_t>> shape;
    std::optional<Layout> layout;
    Hdf5Attributes attributes;
    std::vector<std::pair<uint64_t, uint64_t>> chunks; // address and size of the message blocks of its header
  };

  void object(uint64_t address, const std::string& path, int depth) {
    require(depth <= kDeepestGroup, "groups are nested too deep");
    Object found = header(address);
    if (found.is_group) {
      if (depth == 0) contents_.attributes = std::move(found.attributes);
      if (found.members) symbol_table(*found.members, path, depth);
      for (const Link& link : found.links) member(link, path, depth);
      return;
    }
    require(depth > 0 && found.type && found.shape && found.layout, "an object that is neither a group nor a dataset");
    Hdf5Dataset dataset{*found.type, *found.shape, *found.shape, {}, std::move(found.attributes)};
    locate(*found.layout, dataset);
    require(contents_.datasets.emplace(path, std::move(dataset)).second, "two members of one name");
  }

  void member(const Link& link, const std::string& path, int depth) {
    require(!link.name.empty(), "a member without a name");
    if (depth == 0 && follow_ && !follow_(link.name)) return;
    require(link.address != kUndefined, "a soft or external link");
    object(link.address, path.empty() ? link.name : path + "/" + link.name, depth + 1);
  }

  void locate(const Layout& layout, Hdf5Dataset& dataset) {
    if (layout.chunked) {
      require(layout.chunk_shape.size() == dataset.shape.size(), "chunks of another shape than the dataset's");
      dataset.chunk_shape = layout.chunk_shape;
      if (layout.address != kUndefined) chunk_tree(layout.address, -1, dataset);
      return;
    }
    require(layout.bytes == byte_count(dataset.shape, dataset.type), "a dataset of another size than its shape's");
    if (layout.address == kUndefined) return;
    claim(layout.address, layout.bytes);
    dataset.offsets[0] = static_cast<int64_t>(layout.address);
  }

  // B-tree node of a dataset's chunks [III.A.1, node type 1]. level: expected by its parent; -1: the root.
  void chunk_tree(uint64_t address, int level, Hdf5Dataset& dataset) {
    const size_t rank = dataset.shape.size();
    const uint64_t key_bytes = 8 + 8 * (rank + 1), chunk_bytes = byte_count(dataset.chunk_shape, dataset.type);
    const auto [own, children] = tree_prefix(read(address, kTreePrefix).view(), 1, level);
    const Owned node = take(address, kTreePrefix + children * (key_bytes + 8));
    for (uint64_t i = 0; i < children; ++i) {
      const Bytes key = node.view().part(kTreePrefix + i * (key_bytes + 8), key_bytes + 8);
      const uint64_t child = key.number(key_bytes, 8);
      if (own > 0) {
        chunk_tree(child, own - 1, dataset);
        continue;
      }
      int64_t number = 0;
      for (size_t d = 0; d < rank; ++d) {
        const int64_t extent = dataset.shape[d], chunk = dataset.chunk_shape[d];
        const uint64_t at = key.number(8 + 8 * d, 8);
        require(at < static_cast<uint64_t>(extent) && at % static_cast<uint64_t>(chunk) == 0, "a chunk out of place");
        number = number * ((extent + chunk - 1) / chunk) + static_cast<int64_t>(at) / chunk;
      }
      require(key.number(0, 4) == chunk_bytes && key.number(4, 4) == 0, "a chunk of another size");
      claim(child, chunk_bytes);
      require(dataset.offsets.emplace(number, static_cast<int64_t>(child)).second, "a chunk occurs twice");
    }
  }

  std::pair<int, uint64_t> tree_prefix(const Bytes& node, uint64_t type, int level) const { // level, children
    const auto own = static_cast<int>(node.number(5, 1));
    const uint64_t most = type == 0 ? kTreeChildren : 2 * kTreeChildren, children = node.number(6, 2);
    require(node.is(0, "TREE") && node.number(4, 1) == type && own <= kDeepestTree && children <= most &&
                (level < 0 || own == level),
            "a tree is damaged");
    return {own, children};
  }

  // ---- object headers ----

  // [IV.A.1.a, IV.A.1.b], version 1 or 2.
  Object header(uint64_t address) {
    const bool newer = read(address, 4).view().is(0, "OHDR");
    Object found;
    uint64_t messages = 0, total = 0, expected = 0, order_bytes = 0;
    if (newer) {
      const uint64_t flags = read(address, 6).view().number(5, 1);
      const uint64_t size_at = 6 + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
      const uint64_t size_bytes = uint64_t{1} << (flags & 3);
      order_bytes = (flags & 4) != 0 ? 2 : 0;
      const Owned prefix = take(address, size_at + size_bytes);
      require(prefix.view().number(4, 1) == 2, "an object header of an unknown version");
      found.chunks.emplace_back(address + size_at + size_bytes, prefix.view().number(size_at, size_bytes));
    } else {
      const Owned prefix = take(address, 16);
      require(prefix.view().number(0, 2) == 1, "an object header of an unknown version");
      expected = prefix.view().number(2, 2);
      found.chunks.emplace_back(address + 16, prefix.view().number(8, 4));
    }
    for (size_t i = 0; i < found.chunks.size(); ++i) { // read_messages() may append
      const auto [at, size] = found.chunks[i];
      require(size <= kLargestHeader && (total += size) <= kLargestHeader, "an object header is too large");
      const Owned chunk = take(at, size + (newer && i == 0 ? kChecksumBytes : 0));
      if (!newer) {
        messages += read_messages(chunk.view(), 2, 8, found);
        continue;
      }
      require(i == 0 || (size >= 8 && chunk.view().is(0, "OCHK")), "an object header that is not continued");
      const Bytes body = i == 0 ? chunk.view().part(0, size) : chunk.view().part(4, size - 4 - kChecksumBytes);
      read_messages(body, 1, 4 + order_bytes, found);
    }
    require(messages == expected, "an object header with another number of messages");
    return found;
  }

  uint64_t read_messages(const Bytes& chunk, uint64_t kind_bytes, uint64_t prefix, Object& found) {
    uint64_t count = 0;
    for (uint64_t at = 0; at + prefix <= chunk.size(); ++count) {
      const uint64_t kind = chunk.number(at, kind_bytes), size = chunk.number(at + kind_bytes, 2);
      const bool is_shared = (chunk.number(at + kind_bytes + 2, 1) & 2) != 0;
      message(kind, is_shared, chunk.part(at + prefix, size), found);
      at += prefix + size;
    }
    return count;
  }

  template <class T>
  static void set(std::optional<T>& to, T value) {
    require(!to, "an object has a message twice");
    to = std::move(value);
  }

  // Skips messages that neither locate nor type values (times, fill values, comments).
  static void message(uint64_t kind, bool is_shared, const Bytes& body, Object& found) {
    switch (kind) {
      case 0x01:
        require(!is_shared, "a shared dataspace");
        return set(found.shape, read_shape(body));
      case 0x02: // link info: members of the newer format
        found.is_group = true;
        return require(body.number(2 + ((body.number(1, 1) & 1) != 0 ? 8 : 0), 8) == kUndefined,
                       "a group of more than 8 members of a newer format (h5py: libver=\"earliest\")");
      case 0x03:
        require(!is_shared, "a named datatype");
        return set(found.type, read_type(body));
      case 0x06:
        return found.links.push_back(read_link(body));
      case 0x07:
        throw Hdf5Damage{"a dataset whose values are in another file"};
      case 0x08:
        return set(found.layout, read_layout(body));
      case 0x0B:
        throw Hdf5Damage{"a compressed or filtered dataset (h5py: write it without compression)"};
      case 0x0C:
        return read_attribute(body, found.attributes);
      case 0x10: // continuation
        return void(found.chunks.emplace_back(body.number(0, 8), body.number(8, 8)));
      case 0x11:
        found.is_group = true;
        return set(found.members, SymbolTable{body.number(0, 8), body.number(8, 8)});
      case 0x15: // attribute info
        return require(body.number(2 + ((body.number(1, 1) & 1) != 0 ? 2 : 0), 8) == kUndefined,
                       "an object of more than 8 attributes of a newer format (h5py: libver=\"earliest\")");
      default:
        return;
    }
  }

  // ---- members of a group in the old format: a B-tree of symbol table nodes, and a heap with their names ----

  void symbol_table(const SymbolTable& group, const std::string& path, int depth) {
    const Owned prefix = take(group.heap, kHeapPrefix); // a local heap [III.D]
    const uint64_t size = prefix.view().number(8, 8);
    require(prefix.view().is(0, "HEAP") && size <= kLargestHeap, "a heap is damaged");
    const Owned names = take(prefix.view().number(24, 8), size);
    group_tree(group.tree, -1, names.view(), path, depth);
  }

  // [III.A.1, node type 0].
  void group_tree(uint64_t address, int level, const Bytes& names, const std::string& path, int depth) {
    const Owned node = take(address, kTreePrefix + 8 * (2 * kTreeChildren + 1));
    const auto [own, children] = tree_prefix(node.view(), 0, level);
    for (uint64_t i = 0; i < children; ++i) {
      const uint64_t child = node.view().number(kTreePrefix + 8 + 16 * i, 8);
      own > 0 ? group_tree(child, own - 1, names, path, depth) : leaf(child, names, path, depth);
    }
  }

  // A symbol table node [III.B] of entries [III.C].
  void leaf(uint64_t address, const Bytes& names, const std::string& path, int depth) {
    const Owned node = take(address, kLeafBytes);
    const uint64_t entries = node.view().number(6, 2);
    require(node.view().is(0, "SNOD") && entries <= kLeafEntries, "a group's list of members is damaged");
    for (uint64_t i = 0; i < entries; ++i) {
      const Bytes entry = node.view().part(8 + 40 * i, 40);
      constexpr uint64_t kSoftLink = 2;
      const uint64_t target = entry.number(16, 4) == kSoftLink ? kUndefined : entry.number(8, 8);
      member({std::string(names.from(entry.number(0, 8)).text_before_zero()), target}, path, depth);
    }
  }

  const Hdf5Bytes& file_;
  const Follow& follow_;
  uint64_t end_ = 0;
  std::map<uint64_t, uint64_t> claimed_; // bytes by address
  Hdf5Contents contents_;
};

} // namespace

int64_t Hdf5Dataset::elements() const { return element_count(shape); }

Hdf5Contents read_hdf5(const Hdf5Bytes& file, const std::function<bool(const std::string&)>& follow) {
  return Reader(file, follow).contents();
}

Hdf5Bytes hdf5_bytes(const File& file) {
  return {[&file](int64_t offset, std::span<std::byte> out) { file.read_at(offset, out); }, file.size()};
}

std::vector<Hdf5Range> ranges_of(const Hdf5Dataset& dataset, int64_t begin, int64_t count) {
  const auto range = [&](int64_t chunk, int64_t inside, int64_t elements) -> Hdf5Range {
    const auto found = dataset.offsets.find(chunk);
    const bool is_written = found != dataset.offsets.end();
    return {is_written ? found->second + inside * dataset.type.size : -1, elements * dataset.type.size};
  };
  if (count == 0) return {};
  if (dataset.chunk_shape == dataset.shape) return {range(0, begin, count)};
  std::vector<Hdf5Range> ranges;
  for (int64_t at = begin, end = begin + count; at < end;) {
    int64_t number = 0, inside = 0, run = end - at, rest = at, stride = dataset.elements();
    for (size_t d = 0; d < dataset.shape.size(); ++d) {
      const int64_t extent = dataset.shape[d], chunk = dataset.chunk_shape[d];
      stride /= extent;
      const int64_t coordinate = rest / stride;
      rest %= stride;
      number = number * ((extent + chunk - 1) / chunk) + coordinate / chunk;
      inside = inside * chunk + coordinate % chunk;
      if (d + 1 == dataset.shape.size()) // the range ends with the row of its chunk
        run = std::min({run, chunk - coordinate % chunk, extent - coordinate});
    }
    ranges.push_back(range(number, inside, run));
    at += run;
  }
  return ranges;
}

int64_t to_integer(const Hdf5Type& type, std::span<const std::byte> value) {
  uint64_t bits = 0;
  std::memcpy(&bits, value.data(), value.size());
  const auto unused = static_cast<int>(64 - 8 * type.size);
  return type.is_signed ? static_cast<int64_t>(bits << unused) >> unused : static_cast<int64_t>(bits);
}

double to_real(const Hdf5Type& type, std::span<const std::byte> value) {
  float narrow = 0;
  double wide = 0;
  std::memcpy(type.size == sizeof narrow ? static_cast<void*>(&narrow) : &wide, value.data(), value.size());
  return type.size == sizeof narrow ? static_cast<double>(narrow) : wide;
}

} // namespace gpt2
