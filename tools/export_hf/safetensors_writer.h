// Writes a safetensors file (engine/pretrained/safetensors.h) in one pass.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/pretrained/safetensors.h"

namespace gpt2 {

struct NewTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// The caller appends the values of all tensors in the order of the list, in chunks of any size. Throws Error(disk).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::span<const NewTensor> tensors, WeightType type);
  void append(std::span<const float> values);
  void close(); // after the last value; syncs the file

  static int64_t data_bytes(std::span<const NewTensor> tensors, WeightType type);

 private:
  File file_;
  WeightType type_;
  int64_t at_, end_; // bytes
};

} // namespace gpt2
