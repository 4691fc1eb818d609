#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/top_k.h"

namespace gpt2 {

// One pass: nearly all logits are below the smallest selected one.
std::vector<TokenLogit> top_k_tokens(std::span<const float> logits, size_t count) {
  std::vector<TokenLogit> best; // a min-heap once it has `count`
  for (const float logit : logits.first(count)) {
    best.push_back(
        {std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit, static_cast<int32_t>(best.size())});
  }
  if (count < logits.size()) std::ranges::make_heap(best, likelier);
  for (size_t token = count; token < logits.size(); ++token) {
    if (!(logits[token] > best.front().logit)) continue; // ties: the lower id is already in
    std::ranges::pop_heap(best, likelier);
    best.back() = {logits[token], static_cast<int32_t>(token)};
    std::ranges::push_heap(best, likelier);
  }
  std::ranges::sort(best, likelier);
  return best;
}

} // namespace gpt2
