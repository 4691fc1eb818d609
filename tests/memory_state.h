// A checkpoint that lives in memory, for tests of what models save and load.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/model.h"

namespace gpt2::testing {

class MemoryState final : public StateWriter, public StateReader {
 public:
  struct Floats {
    std::vector<int64_t> shape;
    std::vector<float> values;
    bool operator==(const Floats&) const = default;
  };
  std::map<std::string, Floats> floats;
  std::map<std::string, int64_t> ints;
  std::map<std::string, std::string> texts;

  bool operator==(const MemoryState& other) const {
    return floats == other.floats && ints == other.ints && texts == other.texts;
  }

  void write_floats(const std::string& name, std::span<const int64_t> shape, std::span<const float> values) override {
    floats[name] = {{shape.begin(), shape.end()}, {values.begin(), values.end()}};
  }
  // Pieces of all ranks, written one after the other, become the whole.
  void write_slice(const std::string& name, std::span<const int64_t> shape, int64_t begin,
                   std::span<const float> values) override {
    Floats& whole = floats[name];
    whole.shape.assign(shape.begin(), shape.end());
    whole.values.resize(
        static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
    std::copy(values.begin(), values.end(), whole.values.begin() + begin);
  }
  void write_int(const std::string& name, int64_t value) override { ints[name] = value; }
  void write_text(const std::string& name, const std::string& value) override { texts[name] = value; }

  bool has(const std::string& name) const override {
    return floats.count(name) || ints.count(name) || texts.count(name);
  }
  void read_floats(const std::string& name, std::span<float> values) override {
    const Floats& found = entry(floats, name);
    if (found.values.size() != values.size()) throw Error(ExitCode::checkpoint, name + " has another size");
    std::copy(found.values.begin(), found.values.end(), values.begin());
  }
  void read_range(const std::string& name, int64_t begin, std::span<float> values) override {
    const std::vector<float>& whole = entry(floats, name).values;
    if (begin < 0 || begin + values.size() > whole.size()) throw Error(ExitCode::checkpoint, name + " is smaller");
    std::copy_n(whole.begin() + begin, values.size(), values.begin());
  }
  std::vector<int64_t> shape(const std::string& name) override { return entry(floats, name).shape; }
  int64_t read_int(const std::string& name) override { return entry(ints, name); }
  std::string read_text(const std::string& name) override { return entry(texts, name); }

 private:
  template <class T>
  static const T& entry(const std::map<std::string, T>& map, const std::string& name) {
    const auto found = map.find(name);
    if (found == map.end()) throw Error(ExitCode::checkpoint, name + " is missing");
    return found->second;
  }
};

inline MemoryState saved(StatefulModel& model) {
  MemoryState state;
  const auto snapshot = model.snapshot();
  snapshot->write_own(state);
  snapshot->write_common(state);
  return state;
}

} // namespace gpt2::testing
