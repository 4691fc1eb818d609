#include "engine/pretrained/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "engine/base/float_formats.h"
#include "engine/base/json_reader.h"
#include "engine/model/state.h"

namespace gpt2 {
namespace {

using Json = nlohmann::ordered_json; // to write; of hostile headers, an ordered object would take time by its square

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr int64_t kLargestHeader = 100 << 20; // bytes: the reference reader's limit
constexpr int64_t kLargestTensor = int64_t{1} << 40;
constexpr size_t kAtOnce = 1 << 20; // elements converted at a time

struct TypeName {
  WeightType type;
  const char* name;
};
constexpr TypeName kTypes[] = {{WeightType::f32, "F32"}, {WeightType::bf16, "BF16"}, {WeightType::f16, "F16"}};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ExitCode::checkpoint, "cannot read " + path + ": " + why,
              "give a file in the safetensors format; model.save_pretrained(FOLDER) writes one");
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u;
  uint32_t fraction = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f; // a subnormal
  return sign ? -magnitude : magnitude;
}

void to_floats(WeightType type, const std::byte* bytes, std::span<float> values) {
  if (type == WeightType::f32) {
    std::memcpy(values.data(), bytes, values.size_bytes());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + 2 * i, 2);
    values[i] = type == WeightType::bf16 ? bf16_decode(bits) : half_to_float(bits);
  }
}

int64_t number(const std::string& path, const nlohmann::json& value, int64_t largest) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(largest))
    refuse(path, "its header has a number that cannot be right");
  return value.get<int64_t>();
}

StoredTensor to_tensor(const std::string& path, const std::string& name, const nlohmann::json& entry,
                       int64_t data_begin, int64_t data_bytes) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    refuse(path, "its header says nothing usable about " + name);
  const auto &type = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!type.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2)
    refuse(path, "its header says nothing usable about " + name);
  StoredTensor tensor;
  const auto known = std::ranges::find(kTypes, type.get<std::string>(), &TypeName::name);
  if (known == std::end(kTypes))
    refuse(path, name + " is of type " + type.get<std::string>() + ", not F32, BF16 or F16");
  tensor.type = known->type;
  int64_t elements = 1;
  for (const auto& extent : shape) {
    tensor.shape.push_back(number(path, extent, kLargestTensor));
    if (tensor.shape.back() > 0 && elements > kLargestTensor / tensor.shape.back())
      refuse(path, name + " is impossibly large");
    elements *= tensor.shape.back();
  }
  const int64_t begin = number(path, offsets[0], data_bytes), end = number(path, offsets[1], data_bytes);
  if (end - begin != elements * bytes_of(tensor.type))
    refuse(path, name + " has " + std::to_string(end - begin) + " bytes, not " +
                     std::to_string(elements * bytes_of(tensor.type)));
  tensor.begin = data_begin + begin;
  return tensor;
}

void check_order(const std::string& path, const std::map<std::string, StoredTensor>& tensors) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, tensor] : tensors)
    ranges.emplace_back(tensor.begin, tensor.begin + element_count(tensor.shape) * bytes_of(tensor.type));
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) refuse(path, "two of its tensors share bytes");
  }
}

std::string header_of(std::span<const NewTensor> tensors, WeightType type) {
  Json header;
  header["__metadata__"] = {{"format", "pt"}}; // without it, transformers does not take the file
  int64_t at = 0;
  for (const NewTensor& tensor : tensors) {
    const int64_t bytes = element_count(tensor.shape) * bytes_of(type);
    header[tensor.name] = {{"dtype", std::ranges::find(kTypes, type, &TypeName::type)->name},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' '); // so that the data is aligned
  return text;
}

} // namespace

int64_t bytes_of(WeightType type) { return type == WeightType::f32 ? 4 : 2; }

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(File::open(path, ExitCode::checkpoint)) {
  const int64_t size = file_.size();
  uint64_t length = 0;
  if (size < 8) refuse(path, "it is too short to be a safetensors file");
  file_.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<uint64_t>(std::min(kLargestHeader, size - 8)))
    refuse(path, "it is not a safetensors file, or it is cut short");
  std::string text(length, ' ');
  file_.read_at(8, std::as_writable_bytes(std::span(text)));
  std::string why = "it is not a JSON object";
  const auto header = parse_json(text, {.bytes = kLargestHeader, .unique_keys = true}, &why);
  if (!header.is_object()) refuse(path, "of its header, " + why);
  const auto data_begin = 8 + static_cast<int64_t>(length);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensors_.emplace(name, to_tensor(path, name, entry, data_begin, size - data_begin));
  }
  check_order(path, tensors_);
}

void SafetensorsFile::read(const std::string& name, int64_t begin, std::span<float> values) const {
  const StoredTensor& tensor = tensors_.at(name);
  if (begin < 0 || begin + static_cast<int64_t>(values.size()) > element_count(tensor.shape))
    throw std::out_of_range(name + " has no such elements");
  const int64_t width = bytes_of(tensor.type);
  std::vector<std::byte> bytes(std::min(kAtOnce, values.size()) * static_cast<size_t>(width));
  while (!values.empty()) {
    const std::span<float> now = values.first(std::min(kAtOnce, values.size()));
    file_.read_at(tensor.begin + begin * width, std::span(bytes).first(now.size() * static_cast<size_t>(width)));
    to_floats(tensor.type, bytes.data(), now);
    begin += static_cast<int64_t>(now.size());
    values = values.subspan(now.size());
  }
}

int64_t SafetensorsWriter::data_bytes(std::span<const NewTensor> tensors, WeightType type) {
  int64_t bytes = 0;
  for (const NewTensor& tensor : tensors) bytes += element_count(tensor.shape) * bytes_of(type);
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const NewTensor> tensors, WeightType type)
    : file_(File::create(path)), type_(type) {
  if (type == WeightType::f16) throw std::logic_error("weights are written as FP32 or BF16");
  const std::string header = header_of(tensors, type);
  const uint64_t length = header.size();
  file_.write_at(0, std::as_bytes(std::span(&length, 1)));
  file_.write_at(8, std::as_bytes(std::span(header)));
  at_ = 8 + static_cast<int64_t>(length);
  end_ = at_ + data_bytes(tensors, type);
}

void SafetensorsWriter::append(std::span<const float> values) {
  if (at_ + static_cast<int64_t>(values.size()) * bytes_of(type_) > end_)
    throw std::logic_error("more values than the header announced");
  if (type_ == WeightType::f32) {
    file_.write_at(at_, std::as_bytes(values));
  } else {
    std::vector<uint16_t> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), bf16_encode);
    file_.write_at(at_, std::as_bytes(std::span(rounded)));
  }
  at_ += static_cast<int64_t>(values.size()) * bytes_of(type_);
}

void SafetensorsWriter::close() {
  if (at_ != end_) throw std::logic_error("fewer values than the header announced");
  file_.sync();
}

} // namespace gpt2
