// How a model hands its state to a checkpoint and takes it back, without either knowing the other:
// named, shaped arrays plus scalars, one at a time, so nothing is held twice in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace gpt2 {

inline int64_t element_count(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

class StateWriter {
 public:
  virtual ~StateWriter() = default;
  virtual void write_floats(const std::string& name, std::span<const int64_t> shape, std::span<const float> values) = 0;
  // A part of a tensor of this shape: its elements from `begin` on, in row-major order. Other ranks write the others.
  virtual void write_piece(const std::string& name, std::span<const int64_t> shape, int64_t begin,
                           std::span<const float> values) = 0;
  virtual void write_int(const std::string& name, int64_t value) = 0;
  virtual void write_text(const std::string& name, const std::string& value) = 0;
};

// A rank's share of a model's state at one moment, in memory of its own.
class StateSnapshot {
 public:
  virtual ~StateSnapshot() = default;
  virtual void write_own(StateWriter& writer) const = 0;    // what this rank owns of the tensors
  virtual void write_common(StateWriter& writer) const = 0; // what is the same on every rank: rank 0 writes it
  virtual bool of_muon() const { return false; }            // matrices have one moment, muon_m/
  void write(StateWriter& writer) const {
    write_own(writer);
    write_common(writer);
  }
};

struct FloatRange { // elements [begin, begin + values.size()) of a tensor in row-major order
  std::string name;
  int64_t begin;
  std::span<float> values;
};

class StateReader {
 public:
  virtual ~StateReader() = default;
  virtual bool has(const std::string& name) const = 0;
  // Throws Error(checkpoint) if it is missing or its element count differs from values.size().
  virtual void read_floats(const std::string& name, std::span<float> values) = 0;
  // Elements [begin, begin + values.size()) of a tensor in row-major order, whoever wrote them.
  virtual void read_range(const std::string& name, int64_t begin, std::span<float> values) = 0;
  // Many at once: who knows them all can read a file from its beginning to its end.
  virtual void read_ranges(std::span<const FloatRange> ranges) {
    for (const FloatRange& range : ranges) read_range(range.name, range.begin, range.values);
  }
  virtual std::vector<int64_t> shape(const std::string& name) = 0; // of the whole tensor
  virtual int64_t read_int(const std::string& name) = 0;
  virtual std::string read_text(const std::string& name) = 0;
};

constexpr int64_t kLargestCount = int64_t{1}
                                  << 53; // of steps, tokens, samples: what a double counts, and no run reaches

// A number that counts something. Throws Error(checkpoint) if it is negative or larger than `most`.
int64_t read_count(StateReader& reader, const std::string& name, int64_t most = kLargestCount);

} // namespace gpt2
