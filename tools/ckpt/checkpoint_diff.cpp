#include "tools/ckpt/checkpoint_diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <sstream>

namespace gpt2 {
namespace {

constexpr int64_t kChunk = 1 << 20; // elements: a tensor need not fit into memory

// Calls work(begin, count) for consecutive chunks of `elements`.
template <class Work>
void by_chunks(int64_t elements, const Work& work) {
  for (int64_t begin = 0; begin < elements; begin += kChunk) work(begin, std::min(kChunk, elements - begin));
}

TensorSummary summarize(StateReader& model, const std::string& name) {
  TensorSummary summary{.name = name,
                        .shape = model.shape(name),
                        .min = std::numeric_limits<double>::infinity(),
                        .max = -std::numeric_limits<double>::infinity()};
  const int64_t elements = element_count(summary.shape);
  double sum = 0, squares = 0;
  std::vector<float> values;
  by_chunks(elements, [&](int64_t begin, int64_t count) {
    values.resize(static_cast<size_t>(count));
    model.read_range(name, begin, values);
    for (const double value : values) {
      if (!std::isfinite(value)) {
        summary.not_finite += 1;
        continue;
      }
      summary.min = std::min(summary.min, value), summary.max = std::max(summary.max, value);
      sum += value, squares += value * value;
    }
  });
  const int64_t finite = elements - summary.not_finite;
  summary.mean = finite > 0 ? sum / static_cast<double>(finite) : 0;
  if (finite == 0) summary.min = summary.max = 0;
  summary.norm = std::sqrt(squares);
  return summary;
}

TensorDifference compare(StateReader& a, StateReader& b, const std::string& name) {
  TensorDifference difference{.name = name, .only_in = "", .of = element_count(a.shape(name))};
  double squares = 0, squares_of_a = 0;
  std::vector<float> of_a, of_b;
  by_chunks(difference.of, [&](int64_t begin, int64_t count) {
    of_a.resize(static_cast<size_t>(count)), of_b.resize(static_cast<size_t>(count));
    a.read_range(name, begin, of_a), b.read_range(name, begin, of_b);
    for (size_t i = 0; i < of_a.size(); ++i) {
      squares_of_a += double{of_a[i]} * double{of_a[i]};
      if (std::bit_cast<uint32_t>(of_a[i]) == std::bit_cast<uint32_t>(of_b[i])) continue;
      const double apart = std::abs(double{of_a[i]} - double{of_b[i]});
      difference.count += 1;
      if (!(apart <= difference.largest)) difference.largest = apart; // NaN stays
      squares += apart * apart;
    }
  });
  difference.relative = std::sqrt(squares / squares_of_a);
  return difference;
}

// The first line in which two texts differ.
ScalarDifference first_difference(const std::string& name, const std::string& a, const std::string& b) {
  std::istringstream of_a(a), of_b(b);
  std::string line_a, line_b;
  while (true) {
    const bool more_a = static_cast<bool>(std::getline(of_a, line_a));
    const bool more_b = static_cast<bool>(std::getline(of_b, line_b));
    if (!more_a) line_a = "-";
    if (!more_b) line_b = "-";
    if (line_a != line_b || (!more_a && !more_b)) return {name, line_a, line_b};
  }
}

} // namespace

std::vector<TensorSummary> summarize(OpenCheckpoint& checkpoint) {
  std::vector<TensorSummary> all;
  for (const std::string& name : checkpoint.tensors) all.push_back(summarize(*checkpoint.model, name));
  return all;
}

CheckpointDifference compare(OpenCheckpoint& a, OpenCheckpoint& b) {
  CheckpointDifference difference;
  const std::map<std::string, std::string> of_a(a.scalars.begin(), a.scalars.end()),
      of_b(b.scalars.begin(), b.scalars.end());
  std::set<std::string> names;
  for (const auto& [name, value] : of_a) names.insert(name);
  for (const auto& [name, value] : of_b) names.insert(name);
  for (const std::string& name : names) {
    const bool in_a = of_a.contains(name), in_b = of_b.contains(name);
    if (!in_a || !in_b)
      difference.scalars.push_back({name, in_a ? of_a.at(name) : "-", in_b ? of_b.at(name) : "-"});
    else if (of_a.at(name) != of_b.at(name))
      difference.scalars.push_back(first_difference(name, of_a.at(name), of_b.at(name)));
  }

  std::set<std::string> tensors(a.tensors.begin(), a.tensors.end());
  tensors.insert(b.tensors.begin(), b.tensors.end());
  for (const std::string& name : tensors) {
    const bool in_a = std::ranges::binary_search(a.tensors, name);
    const bool in_b = std::ranges::binary_search(b.tensors, name);
    if (!in_a || !in_b) {
      difference.tensors.push_back({.name = name, .only_in = in_a ? "A" : "B"});
    } else if (a.model->shape(name) != b.model->shape(name)) {
      for (const char* side : {"A", "B"}) difference.tensors.push_back({.name = name, .only_in = side});
    } else if (const TensorDifference found = compare(*a.model, *b.model, name); found.count > 0) {
      difference.tensors.push_back(found);
    }
  }
  return difference;
}

} // namespace gpt2
