#include "engine/text/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gpt2 {
namespace {

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

// Number of tokens that top-k keeps.
size_t top_k_count(const SamplingSettings& settings, size_t vocab) {
  if (!(settings.temperature > 0)) return 1;
  return settings.top_k > 0 ? std::min(static_cast<size_t>(settings.top_k), vocab) : vocab;
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

std::vector<TokenWeight> candidates(std::span<const TokenLogit> likeliest, const SamplingSettings& settings) {
  if (!(settings.temperature > 0)) return {{likeliest[0].token, 1.0}};
  const double largest = likeliest[0].logit;
  std::vector<TokenWeight> kept;
  kept.reserve(likeliest.size());
  for (const auto& [logit, token] : likeliest)
    kept.push_back({token, std::exp((logit - largest) / settings.temperature)});
  keep_top_p(kept, settings.top_p);
  keep_min_p(kept, settings.min_p);
  return kept;
}

std::vector<TokenWeight> candidates(std::span<const float> logits, const SamplingSettings& settings) {
  return candidates(top_k_tokens(logits, top_k_count(settings, logits.size())), settings);
}

std::optional<size_t> likeliest_needed(const SamplingSettings& settings, size_t vocab) {
  if (settings.repetition_penalty != 1) return std::nullopt; // may lower any logit
  const size_t count = top_k_count(settings, vocab);
  return count <= size_t{kMaxTopK} ? std::optional(count) : std::nullopt;
}

int32_t draw(std::span<const TokenWeight> candidates, double uniform) {
  double left = uniform * total_weight(candidates);
  for (const auto& [token, weight] : candidates) {
    left -= weight;
    if (left < 0) return token;
  }
  return candidates.front().token; // rounding error
}

} // namespace gpt2
