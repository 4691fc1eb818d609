// How a model hands its state to a checkpoint and takes it back, without either knowing the other:
// named, shaped arrays plus scalars, one at a time, so nothing is held twice in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gpt2 {

class StateWriter {
 public:
  virtual ~StateWriter() = default;
  virtual void write_floats(const std::string& name, std::span<const int64_t> shape, std::span<const float> values) = 0;
  virtual void write_int(const std::string& name, int64_t value) = 0;
  virtual void write_text(const std::string& name, const std::string& value) = 0;
};

// A model's state at one moment, in memory of its own.
class StateSnapshot {
 public:
  virtual ~StateSnapshot() = default;
  virtual void write(StateWriter& writer) const = 0;
};

class StateReader {
 public:
  virtual ~StateReader() = default;
  virtual bool has(const std::string& name) const = 0;
  // Throws Error(checkpoint) if it is missing or its element count differs from values.size().
  virtual void read_floats(const std::string& name, std::span<float> values) = 0;
  virtual std::vector<int64_t> shape(const std::string& name) = 0;
  virtual int64_t read_int(const std::string& name) = 0;
  virtual std::string read_text(const std::string& name) = 0;
};

} // namespace gpt2
