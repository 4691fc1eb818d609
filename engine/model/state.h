// The interface between a model's state and a checkpoint: named, shaped arrays and scalars, written one at a time so
// that no array is in memory twice.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {

inline int64_t element_count(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

class StateWriter {
 public:
  virtual ~StateWriter() = default;
  virtual void write_floats(const std::string& name, std::span<const int64_t> shape, std::span<const float> values) = 0;
  // Elements of a tensor of this shape from `begin`, in row-major order. Other ranks write the other slices.
  virtual void write_slice(const std::string& name, std::span<const int64_t> shape, int64_t begin,
                           std::span<const float> values) = 0;
  virtual void write_int(const std::string& name, int64_t value) = 0;
  virtual void write_text(const std::string& name, const std::string& value) = 0;
};

// A copy of one rank's state at one step.
class StateSnapshot {
 public:
  virtual ~StateSnapshot() = default;
  virtual void write_own(StateWriter& writer) const = 0;    // this rank's slices of the tensors
  virtual void write_common(StateWriter& writer) const = 0; // equal on every rank: rank 0 writes it
  virtual bool of_muon() const { return false; }            // matrices have one moment: muon_m/
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
  // Throws Error(checkpoint) if the tensor is missing or its element count differs from values.size().
  virtual void read_floats(const std::string& name, std::span<float> values) = 0;
  // Elements [begin, begin + values.size()) of a tensor in row-major order, for any number of writing ranks.
  virtual void read_range(const std::string& name, int64_t begin, std::span<float> values) = 0;
  // Many ranges at once: a file reader may reorder them to read sequentially.
  virtual void read_ranges(std::span<const FloatRange> ranges) {
    for (const FloatRange& range : ranges) read_range(range.name, range.begin, range.values);
  }
  virtual std::vector<int64_t> shape(const std::string& name) = 0; // of the whole tensor
  virtual int64_t read_int(const std::string& name) = 0;
  virtual std::string read_text(const std::string& name) = 0;
};

constexpr int64_t kMaxCount = int64_t{1} << 53; // steps, tokens, samples: exact in a double

// Throws Error(checkpoint) if the count is negative or larger than `most`.
template <class Reader>
int64_t read_count(Reader& reader, const std::string& name, int64_t most = kMaxCount) {
  const int64_t count = reader.read_int(name);
  if (count >= 0 && count <= most) return count;
  throw Error(ExitCode::checkpoint, "the checkpoint's " + name + " is " + std::to_string(count) +
                                        ", not between 0 and " + std::to_string(most));
}

} // namespace gpt2
