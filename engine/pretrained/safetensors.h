// Hugging Face's file format for weights: u64 length of a JSON header, the header (name -> type, shape, bytes), the
// bytes. Read piece by piece, written in one pass, never held whole.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/system/files.h"

namespace gpt2 {

enum class WeightType { f32, bf16, f16 };
int64_t bytes_of(WeightType type);

struct StoredTensor {
  WeightType type = WeightType::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0; // bytes, in the file
};

// A file whose header has been checked against its size: every tensor lies in it, and none over another.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path); // throws Error(checkpoint)

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // Elements [begin, begin + values.size()) of a tensor that is there, in row-major order.
  void read(const std::string& name, int64_t begin, std::span<float> values) const;

 private:
  File file_;
  std::map<std::string, StoredTensor> tensors_;
};

struct NewTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// Tensors are given in the order of the list, each in as many parts as one likes. Throws Error(disk).
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::span<const NewTensor> tensors, WeightType type);
  void append(std::span<const float> values);
  void close(); // all has been given, and is on the disk

  static int64_t data_bytes(std::span<const NewTensor> tensors, WeightType type);

 private:
  File file_;
  WeightType type_;
  int64_t at_, end_; // bytes
};

} // namespace gpt2
