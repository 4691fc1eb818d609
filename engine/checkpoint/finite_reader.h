// Refuses values of a checkpoint that training cannot have produced, with the name of the tensor.
#pragma once

#include "engine/model/state.h"

namespace gpt2 {

// Throws Error(checkpoint) for NaN, infinity, and a negative second moment (adam_v).
class FiniteReader : public StateReader {
 public:
  explicit FiniteReader(StateReader& reader) : reader_(reader) {}

  bool has(const std::string& name) const override { return reader_.has(name); }
  void read_floats(const std::string& name, std::span<float> values) override;
  void read_range(const std::string& name, int64_t begin, std::span<float> values) override;
  void read_ranges(std::span<const FloatRange> ranges) override;
  std::vector<int64_t> shape(const std::string& name) override { return reader_.shape(name); }
  int64_t read_int(const std::string& name) override { return reader_.read_int(name); }
  std::string read_text(const std::string& name) override { return reader_.read_text(name); }

 private:
  StateReader& reader_;
};

} // namespace gpt2
