#include "engine/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace gpt2 {
namespace {

struct Likely {
  float logit; // NaN as -infinity
  int32_t token;
};

bool likelier(const Likely& a, const Likely& b) { return a.logit != b.logit ? a.logit > b.logit : a.token < b.token; }

// The `count` likeliest tokens in order, in one pass over logits that a GPU gives every half millisecond: nearly all of
// them are below the least of the best so far.
std::vector<Likely> likeliest(std::span<const float> logits, size_t count) {
  std::vector<Likely> best; // once there are `count`, a heap with the least likely in front
  for (const float logit : logits.first(count)) {
    best.push_back(
        {std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit, static_cast<int32_t>(best.size())});
  }
  if (count < logits.size()) std::ranges::make_heap(best, likelier);
  for (size_t token = count; token < logits.size(); ++token) {
    if (!(logits[token] > best.front().logit)) continue; // of equals the lower id is there already
    std::ranges::pop_heap(best, likelier);
    best.back() = {logits[token], static_cast<int32_t>(token)};
    std::ranges::push_heap(best, likelier);
  }
  std::ranges::sort(best, likelier);
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
  if (!(settings.temperature > 0)) return {{likeliest(logits, 1)[0].token, 1.0}};
  const size_t all = logits.size();
  const size_t top_k = settings.top_k > 0 ? std::min(static_cast<size_t>(settings.top_k), all) : all;
  const std::vector<Likely> best = likeliest(logits, top_k);
  const double largest = best.front().logit;
  std::vector<TokenWeight> kept;
  for (const auto& [logit, token] : best) kept.push_back({token, std::exp((logit - largest) / settings.temperature)});
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
