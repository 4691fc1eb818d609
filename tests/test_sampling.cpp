// Which token comes next: the filters one by one against numbers worked out by hand, and drawing.
#include "engine/text/sampling.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/base/rng.h"

using namespace gpt2;

namespace {

std::vector<int32_t> tokens_of(const std::vector<TokenWeight>& candidates) {
  std::vector<int32_t> tokens;
  for (const TokenWeight& candidate : candidates) tokens.push_back(candidate.token);
  return tokens;
}

// Probabilities 0.1, 0.4, 0.2, 0.3.
const std::vector<float> kLogits{std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

} // namespace

TEST_CASE("temperature 0 takes the likeliest token, the lower id of equals") {
  const std::vector<float> logits{1, 3, 2, 3};
  CHECK(draw(candidates(logits, {.temperature = 0, .top_k = 0}), 0.999) == 1);
  CHECK(draw(candidates(logits, {.temperature = 0, .top_k = 2}), 0.0) == 1);
}

TEST_CASE("top-k 1 is greedy whatever the draw") {
  const std::vector<float> logits{1, 2, 9, 3};
  for (const double u : {0.0, 0.5, 0.999999})
    CHECK(draw(candidates(logits, {.temperature = 5.0f, .top_k = 1}), u) == 2);
}

TEST_CASE("tokens outside the top k are never drawn") {
  const std::vector<float> logits{0, 0.1f, 0.2f, 0.3f, 0.4f};
  for (int i = 0; i < 1000; ++i) CHECK(draw(candidates(logits, {.temperature = 1.0f, .top_k = 2}), i / 1000.0) >= 3);
}

TEST_CASE("the likeliest of many come in order, equals by id") {
  std::vector<float> logits(5000);
  const Rng rng(9);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(rng.bits(i) % 300); // many equals
  const auto all = tokens_of(candidates(logits, {.temperature = 1, .top_k = 0}));
  REQUIRE(all.size() == logits.size());
  for (size_t i = 1; i < all.size(); ++i) {
    const float before = logits[static_cast<size_t>(all[i - 1])], after = logits[static_cast<size_t>(all[i])];
    CHECK((before > after || (before == after && all[i - 1] < all[i])));
  }
  for (const int top_k : {1, 2, 50, 4999})
    CHECK(tokens_of(candidates(logits, {.temperature = 1, .top_k = top_k})) ==
          std::vector<int32_t>(all.begin(), all.begin() + top_k));
}

TEST_CASE("draws follow the softmax at the given temperature") {
  const std::vector<float> logits{0.0f, 1.0f, 2.0f};
  const float temperature = 0.5f;
  std::map<int32_t, int> counts;
  constexpr int kDraws = 20000;
  const Rng rng(7);
  for (uint64_t i = 0; i < kDraws; ++i)
    counts[draw(candidates(logits, {.temperature = temperature, .top_k = 0}), rng.uniform(i))] += 1;
  const double total = 1 + std::exp(2.0) + std::exp(4.0);
  CHECK(counts[0] / double{kDraws} == doctest::Approx(1 / total).epsilon(0.15));
  CHECK(counts[1] / double{kDraws} == doctest::Approx(std::exp(2.0) / total).epsilon(0.05));
  CHECK(counts[2] / double{kDraws} == doctest::Approx(std::exp(4.0) / total).epsilon(0.02));
}

TEST_CASE("top-p keeps the fewest tokens that have the probability together") {
  const auto kept = [](float top_p) {
    return tokens_of(candidates(kLogits, {.temperature = 1, .top_k = 0, .top_p = top_p}));
  };
  CHECK(kept(0.01f) == std::vector<int32_t>{1});
  CHECK(kept(0.39f) == std::vector<int32_t>{1});
  CHECK(kept(0.41f) == std::vector<int32_t>{1, 3});
  CHECK(kept(0.69f) == std::vector<int32_t>{1, 3});
  CHECK(kept(0.71f) == std::vector<int32_t>{1, 3, 2});
  CHECK(kept(1.0f) == std::vector<int32_t>{1, 3, 2, 0});
}

TEST_CASE("min-p measures by the likeliest token") {
  const auto kept = [](float min_p) {
    return tokens_of(candidates(kLogits, {.temperature = 1, .top_k = 0, .min_p = min_p}));
  };
  CHECK(kept(0.0f) == std::vector<int32_t>{1, 3, 2, 0});
  CHECK(kept(0.26f) == std::vector<int32_t>{1, 3, 2}); // 0.1 / 0.4 = 0.25
  CHECK(kept(0.6f) == std::vector<int32_t>{1, 3});
  CHECK(kept(1.0f) == std::vector<int32_t>{1});
}

TEST_CASE("each filter sees what those before it left") {
  // Top-k leaves 4/7 and 3/7: of those, 0.5 is reached by the first alone; of all four it would take two.
  CHECK(tokens_of(candidates(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.5f})) == std::vector<int32_t>{1});
  // At temperature 1/2 probabilities are as their squares, 1 16 4 9: top-p 0.8 takes 25 of 30, and 9/16 < 0.6.
  const SamplingSettings cold{.temperature = 0.5f, .top_k = 0, .top_p = 0.8f};
  CHECK(tokens_of(candidates(kLogits, cold)) == std::vector<int32_t>{1, 3});
  SamplingSettings colder = cold;
  colder.min_p = 0.6f;
  CHECK(tokens_of(candidates(kLogits, colder)) == std::vector<int32_t>{1});
  const auto squares = candidates(kLogits, {.temperature = 0.5f, .top_k = 0});
  CHECK(squares[1].weight == doctest::Approx(9.0 / 16));
  CHECK(squares[3].weight == doctest::Approx(1.0 / 16));
}

TEST_CASE("the repetition penalty makes tokens of the text less likely, each once, whatever their sign") {
  std::vector<float> logits{2.0f, -2.0f, 3.0f, 0.5f};
  penalize_repetition(logits, std::vector<int32_t>{0, 1, 0, 0}, 2.0f);
  CHECK(logits == std::vector<float>{1.0f, -4.0f, 3.0f, 0.5f});
  penalize_repetition(logits, std::vector<int32_t>{2}, 1.0f);
  CHECK(logits[2] == 3.0f);
}

TEST_CASE("NaN is never drawn where there is a number") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits{nan, 1.0f, nan};
  for (const float temperature : {0.0f, 1.0f})
    CHECK(candidates(logits, {.temperature = temperature, .top_k = 1})[0].token == 1);
}
