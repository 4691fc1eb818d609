#include "engine/train/sampling.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "tests/expect_error.h"

using namespace gpt2;

namespace {

// Likes token (last + 1) best; remembers the contexts it was shown.
class CountingModel : public EvaluableModel {
 public:
  const GPT2Config& config() const override { return config_; }
  void evaluate(const Batch&, std::span<LossSum>) override {}
  void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) override {
    contexts.emplace_back(tokens.begin(), tokens.end());
    std::fill(logits.begin(), logits.end(), 0.0f);
    const size_t next = (static_cast<size_t>(tokens.back()) + 1) % logits.size();
    logits[next == Tokenizer::kEndOfText ? stop_at_end ? next : 0 : next] = 50.0f;
    logit_count = logits.size();
  }

  std::vector<std::vector<int32_t>> contexts;
  size_t logit_count = 0;
  bool stop_at_end = true;

 private:
  static GPT2Config make_config() {
    GPT2Config config;
    config.layers = 1, config.heads = 1, config.channels = 4, config.seq_len = 4;
    return config;
  }
  GPT2Config config_ = make_config();
};

} // namespace

TEST_CASE("temperature 0 takes the likeliest token, the lower id of equals") {
  const std::vector<float> logits{1, 3, 2, 3};
  CHECK(choose_token(logits, 0, 0, 0.999) == 1);
  CHECK(choose_token(logits, 0, 2, 0.0) == 1);
}

TEST_CASE("top-k 1 is greedy whatever the draw") {
  const std::vector<float> logits{1, 2, 9, 3};
  for (const double u : {0.0, 0.5, 0.999999}) CHECK(choose_token(logits, 5.0f, 1, u) == 2);
}

TEST_CASE("tokens outside the top k are never drawn") {
  const std::vector<float> logits{0, 0.1f, 0.2f, 0.3f, 0.4f};
  for (int i = 0; i < 1000; ++i) CHECK(choose_token(logits, 1.0f, 2, i / 1000.0) >= 3);
}

TEST_CASE("draws follow the softmax at the given temperature") {
  const std::vector<float> logits{0.0f, 1.0f, 2.0f};
  const float temperature = 0.5f;
  std::map<int32_t, int> counts;
  constexpr int kDraws = 20000;
  const Rng rng(7);
  for (uint64_t i = 0; i < kDraws; ++i) counts[choose_token(logits, temperature, 0, rng.uniform(i))] += 1;
  const double total = 1 + std::exp(2.0) + std::exp(4.0);
  CHECK(counts[0] / double{kDraws} == doctest::Approx(1 / total).epsilon(0.15));
  CHECK(counts[1] / double{kDraws} == doctest::Approx(std::exp(2.0) / total).epsilon(0.05));
  CHECK(counts[2] / double{kDraws} == doctest::Approx(std::exp(4.0) / total).epsilon(0.02));
}

TEST_CASE("generation starts after end-of-text, slides its window and returns prompt and continuation") {
  CountingModel model;
  const auto tokens = generate(model, {10, 11}, {.tokens = 5, .temperature = 0}, 0);
  CHECK(tokens == std::vector<uint16_t>{10, 11, 12, 13, 14, 15, 16});
  REQUIRE(model.contexts.size() == 5);
  CHECK(model.contexts[0] == std::vector<int32_t>{50256, 10, 11});
  CHECK(model.contexts[4] == std::vector<int32_t>{12, 13, 14, 15}); // the model's 4 positions
}

TEST_CASE("logits cover the real vocabulary only, so padding cannot be drawn") {
  CountingModel model;
  generate(model, {}, {.tokens = 1}, 0);
  CHECK(model.logit_count == 50257);
}

TEST_CASE("end-of-text ends the sample and is not part of it") {
  CountingModel model;
  CHECK(generate(model, {50253}, {.tokens = 20, .temperature = 0}, 0) == std::vector<uint16_t>{50253, 50254, 50255});
}

TEST_CASE("the same seed and stream write the same text, another stream another") {
  CountingModel model;
  const SampleSettings wild{.tokens = 30, .temperature = 100.0f, .top_k = 0, .seed = 3};
  const auto once = generate(model, {}, wild, 5);
  CHECK(once == generate(model, {}, wild, 5));
  CHECK(once != generate(model, {}, wild, 6));
  SampleSettings other = wild;
  other.seed = 4;
  CHECK(once != generate(model, {}, other, 5));
}

TEST_CASE("without BPE tables the built-in sample can be printed but prompts cannot be read") {
  const TextCodec codec("", true);
  CHECK(codec.can_decode());
  CHECK(codec.encode("").empty());
  const Error error = expect_error([&] { codec.encode("Once"); });
  CHECK(error.code() == ExitCode::data);
  CHECK(contains(error.hint(), "--tokenizer"));
  CHECK_FALSE(TextCodec("", false).can_decode());
}
