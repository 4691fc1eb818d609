#include "engine/checkpoint/finite_reader.h"

#include <algorithm>
#include <bit>

#include "engine/base/error.h"
#include "engine/hdf5/parallel_for.h"

namespace gpt2 {
namespace {

constexpr uint32_t kWithoutSign = 0x7FFFFFFF, kInfinity = 0x7F800000, kMinusZero = 0x80000000;

struct Largest {
  uint32_t bits = 0, without_sign = 0;
};

// No branches, so the loop vectorizes: cheaper than reading the values.
Largest largest_of(std::span<const float> values) {
  Largest largest;
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    largest.bits = std::max(largest.bits, bits);
    largest.without_sign = std::max(largest.without_sign, bits & kWithoutSign);
  }
  return largest;
}

void check(const std::string& name, std::span<const float> values) {
  const Largest largest = largest_of(values);
  const auto refuse = [&](const char* why) {
    throw Error(ExitCode::checkpoint, "the checkpoint's " + name + " " + why);
  };
  if (largest.without_sign >= kInfinity) refuse("holds values that are not finite");
  if (name.starts_with("adam_v/") && largest.bits > kMinusZero)
    refuse("is a mean of squares, but holds negative values");
}

} // namespace

void FiniteReader::read_floats(const std::string& name, std::span<float> values) {
  reader_.read_floats(name, values);
  check(name, values);
}

void FiniteReader::read_range(const std::string& name, int64_t begin, std::span<float> values) {
  reader_.read_range(name, begin, values);
  check(name, values);
}

void FiniteReader::read_ranges(std::span<const FloatRange> ranges) {
  reader_.read_ranges(ranges);
  parallel_for(ranges.size(), [&](size_t i) { check(ranges[i].name, ranges[i].values); });
}

} // namespace gpt2
