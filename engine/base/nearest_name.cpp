#include "engine/base/nearest_name.h"

#include <algorithm>
#include <utility>

namespace gpt2 {
namespace {

// Levenshtein distance.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substitute}));
    }
  }
  return row.back();
}

} // namespace

std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates) {
  const auto distance = [&](const std::string& candidate) { return edit_distance(word, candidate); };
  const auto nearest = std::ranges::min_element(candidates, {}, distance);
  const size_t farthest = std::max<size_t>(2, word.size() / 3); // beyond: not a typing error
  return nearest == candidates.end() || distance(*nearest) > farthest ? "" : *nearest;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates,
                         const std::string& otherwise) {
  const std::string near = nearest_name(word, candidates);
  return near.empty() ? otherwise : "did you mean " + near + "?";
}

} // namespace gpt2
