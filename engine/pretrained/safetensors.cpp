#include "engine/pretrained/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "engine/base/float_formats.h"
#include "engine/base/json_reader.h"
#include "engine/model/state.h"

namespace gpt2 {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr int64_t kLargestHeader = 100 << 20; // bytes: the reference reader's limit
constexpr int64_t kLargestTensor = int64_t{1} << 40;
constexpr size_t kAtOnce = 1 << 20; // elements per read

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
    refuse(path, "a number in its header is out of range");
  return value.get<int64_t>();
}

StoredTensor to_tensor(const std::string& path, const std::string& name, const nlohmann::json& entry,
                       int64_t data_begin, int64_t data_bytes) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets"))
    refuse(path, "its header has no type, shape and offsets for " + name);
  const auto &type = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!type.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2)
    refuse(path, "its header has no type, shape and offsets for " + name);
  StoredTensor tensor;
  const std::optional<WeightType> known = value_named<WeightType>(type.get<std::string>());
  if (!known) refuse(path, name + " is of type " + type.get<std::string>() + ", not F32, BF16 or F16");
  tensor.type = *known;
  int64_t elements = 1;
  for (const auto& extent : shape) {
    tensor.shape.push_back(number(path, extent, kLargestTensor));
    if (tensor.shape.back() > 0 && elements > kLargestTensor / tensor.shape.back())
      refuse(path, name + " has too many elements");
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
    if (ranges[i].first < ranges[i - 1].second) refuse(path, "two of its tensors overlap");
  }
}

} // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(File::open(path, ExitCode::checkpoint)) {
  const int64_t size = file_.size();
  uint64_t length = 0;
  if (size < 8) refuse(path, "it is too short to be a safetensors file");
  file_.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<uint64_t>(std::min(kLargestHeader, size - 8)))
    refuse(path, "it is not a safetensors file, or it is truncated");
  std::string text(length, ' ');
  file_.read_at(8, std::as_writable_bytes(std::span(text)));
  std::string why = "it is not a JSON object";
  const auto header = parse_json(text, {.bytes = kLargestHeader, .unique_keys = true}, &why);
  if (!header.is_object()) refuse(path, "its header: " + why);
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

} // namespace gpt2
