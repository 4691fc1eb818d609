#include "engine/io/finite_reader.h"

#include <algorithm>
#include <bit>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

// Without branches and vectorised: it costs less than reading the values.
uint32_t largest_bits(std::span<const float> values, uint32_t mask) {
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & mask);
  return largest;
}

constexpr uint32_t kWithoutSign = 0x7FFFFFFF, kInfinity = 0x7F800000, kMinusZero = 0x80000000;
bool all_finite(std::span<const float> values) { return largest_bits(values, kWithoutSign) < kInfinity; }
bool any_negative(std::span<const float> values) { return largest_bits(values, ~0u) > kMinusZero; }

void check(const std::string& name, std::span<const float> values) {
  const auto refuse = [&](const char* why) {
    throw Error(ExitCode::checkpoint, "the checkpoint's " + name + " " + why);
  };
  if (!all_finite(values)) refuse("holds values that are not finite");
  if (name.starts_with("adam_v/") && any_negative(values)) refuse("is a mean of squares, but holds negative values");
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

} // namespace gpt2
