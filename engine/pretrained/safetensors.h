// Reads safetensors, Hugging Face's file format for weights: u64 length of a JSON header, the header (name -> type,
// shape, byte range), the bytes. Tensors are read in ranges; the file is never in memory as a whole.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/base/enum_names.h"
#include "engine/system/files.h"

namespace gpt2 {

enum class WeightType { f32, bf16, f16 };
constexpr auto names_of(WeightType) { // in the header
  using enum WeightType;
  return std::to_array<EnumName<WeightType>>({{f32, "F32"}, {bf16, "BF16"}, {f16, "F16"}});
}
constexpr int64_t bytes_of(WeightType type) { return type == WeightType::f32 ? 4 : 2; }

struct StoredTensor {
  WeightType type = WeightType::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0; // byte offset in the file
};

// The header is checked against the file size: every tensor is inside the file, and none overlap.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path); // throws Error(checkpoint)

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // Elements [begin, begin + values.size()) of an existing tensor, row-major, converted to FP32.
  void read(const std::string& name, int64_t begin, std::span<float> values) const;

 private:
  File file_;
  std::map<std::string, StoredTensor> tensors_;
};

} // namespace gpt2
