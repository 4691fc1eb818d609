#include "engine/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace gpt2 {
namespace {

// The `count` likeliest tokens in order, in one pass over logits that a GPU gives every half millisecond: nearly all of
// them are below the least of the best so far.
std::vector<int32_t> likeliest(std::span<const float> logits, size_t count) {
  const auto logit = [&](int32_t token) {
    const float value = logits[static_cast<size_t>(token)];
    return std::isnan(value) ? -std::numeric_limits<float>::infinity() : value;
  };
  const auto likelier = [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };
  std::vector<int32_t> best(count); // a heap with the least likely in front
  std::iota(best.begin(), best.end(), 0);
  if (count == logits.size()) return std::ranges::sort(best, likelier), best;
  std::ranges::make_heap(best, likelier);
  float least = logit(best.front());
  for (size_t token = count; token < logits.size(); ++token) {
    if (!(logits[token] > least)) continue; // of equals the lower id is there already
    std::ranges::pop_heap(best, likelier);
    best.back() = static_cast<int32_t>(token);
    std::ranges::push_heap(best, likelier);
    least = logit(best.front());
  }
  std::ranges::sort_heap(best, likelier);
  return best;
}

double total_weight(std::span<const TokenWeight> candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const TokenWeight& candidate) { return sum + candidate.weight; });
}

void keep_top_p(std::vector<TokenWeight>& candidates, float top_p) {
  if (!(top_p < 1)) return;
  const double enough = top_p * total_weight(candidates);
  size_t kept = 0;
  for (double sum = 0; kept < candidates.size() && (kept == 0 || sum < enough); ++kept) sum += candidates[kept].weight;
  candidates.resize(kept);
}

void keep_min_p(std::vector<TokenWeight>& candidates, float min_p) {
  const auto rest = std::find_if(candidates.begin() + 1, candidates.end(),
                                 [&](const TokenWeight& candidate) { return candidate.weight < min_p; });
  candidates.erase(rest, candidates.end());
}

} // namespace

void penalize_repetition(std::span<float> logits, std::span<const int32_t> text, float penalty) {
  if (penalty == 1) return;
  std::vector<bool> done(logits.size());
  for (const int32_t token : text) {
    const auto at = static_cast<size_t>(token);
    if (done[at]) continue;
    done[at] = true;
    logits[at] = logits[at] < 0 ? logits[at] * penalty : logits[at] / penalty;
  }
}

std::vector<TokenWeight> candidates(std::span<const float> logits, const SamplingSettings& settings) {
  if (!(settings.temperature > 0)) return {{likeliest(logits, 1)[0], 1.0}};
  const size_t all = logits.size();
  const size_t top_k = settings.top_k > 0 ? std::min(static_cast<size_t>(settings.top_k), all) : all;
  std::vector<TokenWeight> kept;
  for (const int32_t token : likeliest(logits, top_k)) {
    const double largest = logits[static_cast<size_t>(kept.empty() ? token : kept.front().token)];
    kept.push_back({token, std::exp((logits[static_cast<size_t>(token)] - largest) / settings.temperature)});
  }
  keep_top_p(kept, settings.top_p);
  keep_min_p(kept, settings.min_p);
  return kept;
}

int32_t draw(std::span<const TokenWeight> candidates, double uniform) {
  double left = uniform * total_weight(candidates);
  for (const auto& [token, weight] : candidates) {
    left -= weight;
    if (left < 0) return token;
  }
  return candidates.front().token; // rounding left a crumb
}

} // namespace gpt2
