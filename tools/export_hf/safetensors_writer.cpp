#include "tools/export_hf/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/base/float_formats.h"
#include "engine/model/state.h"

namespace gpt2 {
namespace {

std::string header_of(std::span<const NewTensor> tensors, WeightType type) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}}; // transformers refuses a file without it
  int64_t at = 0;
  for (const NewTensor& tensor : tensors) {
    const int64_t bytes = element_count(tensor.shape) * bytes_of(type);
    header[tensor.name] = {{"dtype", name_of(type)}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' '); // aligns the data
  return text;
}

} // namespace

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
