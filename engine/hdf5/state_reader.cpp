#include "engine/hdf5/state_reader.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/model/state.h"

namespace gpt2 {
namespace {

using Kind = Hdf5Type::Kind;

constexpr int64_t kLongestText = 16 << 20; // larger: damaged

// Bounds the extents, so that element_count() does not overflow.
bool is_sane(std::span<const int64_t> shape) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  return (shape.size() == 1 || shape.size() == 2) &&
         std::ranges::all_of(shape, [](int64_t extent) { return extent >= 0 && extent <= kLargest; });
}

bool is_tensor(const Hdf5Dataset& dataset) { return dataset.type.kind == Kind::real && !dataset.shape.empty(); }

std::string to_text(std::span<const std::byte> value) {
  std::string text(reinterpret_cast<const char*>(value.data()), value.size());
  text.erase(text.find_last_not_of('\0') + 1); // padding
  return text;
}

std::vector<int64_t> to_integers(const Hdf5Attribute& attribute) {
  std::vector<int64_t> values;
  const auto size = static_cast<size_t>(attribute.type.size);
  for (std::span<const std::byte> rest = attribute.value; rest.size() >= size; rest = rest.subspan(size))
    values.push_back(to_integer(attribute.type, rest.first(size)));
  return values;
}

std::string elements(int64_t begin, int64_t end) { return std::to_string(begin) + " to " + std::to_string(end); }

} // namespace

// ---- the file ----

Hdf5StateFile::Hdf5StateFile(VerifiedFile file) : file_(std::move(file)) {
  try {
    const auto read_at = [&](int64_t offset, std::span<std::byte> out) { file_.read(offset, out); };
    contents_ = read_hdf5({read_at, file_.bytes()});
  } catch (const Hdf5Damage& damage) {
    fail("", "it is damaged: " + damage.what);
  }
}

void Hdf5StateFile::fail(const std::string& name, const std::string& reason) const {
  throw Error(ExitCode::checkpoint, "cannot read " + (name.empty() ? "" : name + " of ") + path() + ": " + reason);
}

const Hdf5Attribute& Hdf5StateFile::attribute(const std::string& name, Kind kind) const {
  const auto found = contents_.attributes.find(name);
  if (found == contents_.attributes.end()) fail(name, "it is missing");
  const auto& [type, shape, value] = found->second;
  if (type.kind != kind || element_count(shape) != 1) fail(name, "it is not one value of its type");
  return found->second;
}

int64_t Hdf5StateFile::read_int_attribute(const std::string& name) const {
  const Hdf5Attribute& found = attribute(name, Kind::integer);
  return to_integer(found.type, found.value);
}

std::string Hdf5StateFile::read_text_attribute(const std::string& name) const {
  return to_text(attribute(name, Kind::text).value);
}

// ---- a group in it ----

Hdf5StateReader::Hdf5StateReader(const Hdf5StateFile& file, std::string group)
    : file_(file), group_(std::move(group) + "/") {}

void Hdf5StateReader::fail(const std::string& name, const std::string& reason) const {
  file_.fail(group_ + name, reason);
}

bool Hdf5StateReader::has(const std::string& name) const { return file_.contents().datasets.contains(group_ + name); }

const Hdf5Dataset& Hdf5StateReader::dataset(const std::string& name, Kind kind) const {
  const auto found = file_.contents().datasets.find(group_ + name);
  if (found == file_.contents().datasets.end()) fail(name, "it is missing");
  if (found->second.type.kind != kind) fail(name, "it is of another type");
  return found->second;
}

TensorPart Hdf5StateReader::part(const std::string& name) const {
  const Hdf5Dataset& found = dataset(name, Kind::real);
  if (found.type.size != sizeof(float) || !is_sane(found.shape))
    fail(name, "it is neither a vector nor a matrix of float32");
  TensorPart part{.shape = found.shape, .begin = 0, .count = found.elements()};
  if (!found.attributes.contains("begin")) return part;
  const auto numbers = [&](const char* attribute) {
    const auto its = found.attributes.find(attribute);
    if (its == found.attributes.end() || its->second.type.kind != Kind::integer || its->second.value.empty())
      fail(name, std::string("it has no ") + attribute);
    return to_integers(its->second);
  };
  part.shape = numbers("shape");
  part.begin = numbers("begin").front();
  if (found.shape.size() != 1 || !is_sane(part.shape) || part.begin < 0 ||
      part.begin > element_count(part.shape) - part.count)
    fail(name, "it is a segment that is not inside its tensor");
  return part;
}

void Hdf5StateReader::add_parts(const std::string& name, int64_t begin, std::span<float> values,
                                std::vector<FilePart>& parts) const {
  std::span<std::byte> out = std::as_writable_bytes(values);
  for (const Hdf5Range& range :
       ranges_of(dataset(name, Kind::real), begin - part(name).begin, static_cast<int64_t>(values.size()))) {
    const auto bytes = static_cast<size_t>(range.bytes);
    if (range.offset < 0)
      std::ranges::fill(out.first(bytes), std::byte{0});
    else
      parts.push_back({range.offset, out.first(bytes)});
    out = out.subspan(bytes);
  }
}

void Hdf5StateReader::read_range(const std::string& name, int64_t begin, std::span<float> values) const {
  const TensorPart there = part(name);
  const int64_t end = begin + static_cast<int64_t>(values.size());
  if (begin < there.begin || end > there.begin + there.count)
    fail(name,
         "it holds elements " + elements(there.begin, there.begin + there.count) + ", not " + elements(begin, end));
  std::vector<FilePart> parts;
  add_parts(name, begin, values, parts);
  for (const FilePart& part : parts) file_.read(part); // caches blocks: the neighbors are read next
}

std::vector<std::pair<std::string, const Hdf5Dataset*>> Hdf5StateReader::datasets() const {
  std::vector<std::pair<std::string, const Hdf5Dataset*>> found;
  const auto& all = file_.contents().datasets;
  for (auto at = all.lower_bound(group_); at != all.end() && at->first.starts_with(group_); ++at)
    found.emplace_back(at->first.substr(group_.size()), &at->second);
  return found;
}

std::vector<std::string> Hdf5StateReader::tensors() const {
  std::vector<std::string> tensors;
  for (const auto& [name, dataset] : datasets()) {
    if (is_tensor(*dataset)) tensors.push_back(name);
  }
  return tensors;
}

std::vector<std::pair<std::string, std::string>> Hdf5StateReader::scalars() const {
  std::vector<std::pair<std::string, std::string>> scalars;
  for (const auto& [name, dataset] : datasets()) {
    if (!dataset->shape.empty()) continue;
    const Kind kind = dataset->type.kind;
    scalars.emplace_back(group_ + name, kind == Kind::text   ? read_text(name)
                                        : kind == Kind::real ? formatted("%.17g", read_real(name))
                                                             : std::to_string(read_int(name)));
  }
  return scalars;
}

std::vector<std::byte> Hdf5StateReader::scalar(const std::string& name, const Hdf5Dataset& dataset) const {
  if (dataset.elements() != 1) fail(name, "it is not a single value");
  if (dataset.type.size > kLongestText) fail(name, "it is larger than any text");
  std::vector<std::byte> value(static_cast<size_t>(dataset.type.size));
  const Hdf5Range range = ranges_of(dataset, 0, 1).front();
  if (range.offset >= 0) file_.read({range.offset, value});
  return value;
}

int64_t Hdf5StateReader::read_int(const std::string& name) const {
  const Hdf5Dataset& found = dataset(name, Kind::integer);
  return to_integer(found.type, scalar(name, found));
}

double Hdf5StateReader::read_real(const std::string& name) const {
  const Hdf5Dataset& found = dataset(name, Kind::real);
  return to_real(found.type, scalar(name, found));
}

std::string Hdf5StateReader::read_text(const std::string& name) const {
  return to_text(scalar(name, dataset(name, Kind::text)));
}

} // namespace gpt2
