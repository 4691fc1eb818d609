// Texts from a model that counts: windows, endings, batches; and what a reader sees of them.
#include "engine/text/generate.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/text/text_codec.h"
#include "tests/expect_error.h"
#include "tools/generate/text_stream.h"

using namespace gpt2;

namespace {

// Likes token (last + 1) best; remembers the contexts it was shown.
class CountingModel : public EvaluableModel {
 public:
  const GPT2Config& config() const override { return config_; }
  void evaluate(const Batch&, std::span<LossSum>) override {}
  void next_token_logits(std::span<const int32_t> tokens, std::span<float> logits) override {
    contexts.emplace_back(tokens.begin(), tokens.end());
    std::fill(logits.begin(), logits.end(), ruined ? std::nanf("") : 0.0f);
    const size_t next = (static_cast<size_t>(tokens.back()) + 1) % logits.size();
    logits[next] = 50.0f;
    logit_count = logits.size();
  }

  std::vector<std::vector<int32_t>> contexts;
  size_t logit_count = 0;
  bool ruined = false;

 private:
  static GPT2Config make_config() {
    GPT2Config config;
    config.layers = 1, config.heads = 1, config.channels = 4, config.seq_len = 4;
    return config;
  }
  GPT2Config config_ = make_config();
};

GenerationSettings greedy(int tokens) { return {.tokens = tokens, .sampling = {.temperature = 0}}; }

} // namespace

TEST_CASE("generation starts after end-of-text, slides its window and returns prompt and continuation") {
  CountingModel model;
  const auto tokens = write_sample(model, {{10, 11}, 0}, greedy(5));
  CHECK(tokens == std::vector<uint16_t>{10, 11, 12, 13, 14, 15, 16});
  REQUIRE(model.contexts.size() == 5);
  CHECK(model.contexts[0] == std::vector<int32_t>{50256, 10, 11});
  CHECK(model.contexts[1] == std::vector<int32_t>{50256, 10, 11, 12}); // the model's 4 positions
  CHECK(model.contexts[2] == std::vector<int32_t>{12, 13});            // then from the last half of them
  CHECK(model.contexts[4] == std::vector<int32_t>{12, 13, 14, 15});
}

TEST_CASE("without bos the context starts with the prompt") {
  CountingModel model;
  GenerationSettings settings = greedy(2);
  settings.bos = false;
  write_sample(model, {{10, 11}, 0}, settings);
  CHECK(model.contexts[0] == std::vector<int32_t>{10, 11});
}

TEST_CASE("logits cover the real vocabulary only, so padding cannot be drawn") {
  CountingModel model;
  write_sample(model, {}, {.tokens = 1});
  CHECK(model.logit_count == 50257);
}

TEST_CASE("end-of-text ends the sample and is not part of it") {
  CountingModel model;
  CHECK(write_sample(model, {{50253}, 0}, greedy(20)) == std::vector<uint16_t>{50253, 50254, 50255});
}

TEST_CASE("the same seed and stream write the same text, another stream another") {
  CountingModel model;
  const GenerationSettings wild{.tokens = 30, .sampling = {.temperature = 100.0f, .top_k = 0}, .seed = 3};
  const auto once = write_sample(model, {{}, 5}, wild);
  CHECK(once == write_sample(model, {{}, 5}, wild));
  CHECK(once != write_sample(model, {{}, 6}, wild));
  GenerationSettings other = wild;
  other.seed = 4;
  CHECK(once != write_sample(model, {{}, 5}, other));
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

TEST_CASE("texts of a batch end each in its own way and are what they are alone") {
  CountingModel model;
  const std::vector<Prompt> prompts{{{10, 11}, 0}, {{50254}, 1}, {{}, 2}, {{7, 7, 7, 7, 7, 7}, 3}};
  const auto settings = greedy(6);
  const auto together = generate(*model.make_decoder(4, 4), prompts, settings).texts;
  REQUIRE(together.size() == 4);
  CHECK(together[0].ending == Ending::length);
  CHECK(together[1].ending == Ending::end_of_text);
  CHECK(together[1].tokens == std::vector<uint16_t>{50255});
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = generate(*model.make_decoder(1, 4), {&prompts[i], 1}, settings).texts[0];
    CHECK(alone.tokens == together[i].tokens);
    CHECK(alone.ending == together[i].ending);
    CHECK(alone.slides == together[i].slides);
  }
  CHECK(together[0].slides == 2); // full at 4, again after 2 more
}

TEST_CASE("a text may end where the positions do") {
  CountingModel model;
  GenerationSettings settings = greedy(6);
  settings.slide = false;
  const Prompt prompt{{10, 11}, 0};
  const auto text = generate(*model.make_decoder(1, 4), {&prompt, 1}, settings).texts[0];
  CHECK(text.ending == Ending::no_positions);
  CHECK(text.tokens == std::vector<uint16_t>{12, 13});
}

TEST_CASE("who listens hears every token and may end a text; who waits may end all") {
  CountingModel model;
  const std::vector<Prompt> prompts{{{10}, 0}, {{20}, 1}};
  std::vector<uint16_t> heard;
  Listeners listeners;
  listeners.token = [&](size_t text, uint16_t token) {
    return text == 1 || (heard.push_back(token), heard.size() < 2);
  };
  auto texts = generate(*model.make_decoder(2, 4), prompts, greedy(3), listeners).texts;
  CHECK(heard == std::vector<uint16_t>{11, 12});
  CHECK(texts[0].ending == Ending::stopped);
  CHECK(texts[0].tokens == heard);
  CHECK(texts[1].ending == Ending::length);
  CHECK(texts[1].tokens.size() == 3);

  int rounds = 0;
  texts = generate(*model.make_decoder(2, 4), prompts, greedy(3), {.interrupted = [&] { return ++rounds > 2; }}).texts;
  for (const WrittenText& text : texts) {
    CHECK(text.ending == Ending::interrupted);
    CHECK(text.tokens.size() == 2);
  }
}

TEST_CASE("logits that are no numbers end a text") {
  CountingModel model;
  model.ruined = true;
  const Prompt prompt{{10}, 0};
  const auto text = generate(*model.make_decoder(1, 4), {&prompt, 1}, greedy(3)).texts[0];
  CHECK(text.ending == Ending::not_finite);
  CHECK(text.tokens.empty());
}

TEST_CASE("a text is shown in whole characters, and in pieces as in one") {
  const std::string text =
      "a\xF0\x9F\x98\x80\xC3\xA9 \xF0\x9F!\xE2\x82\xAC\xFF\xED\xA0\x80z\xE2\x82"; // an emoji and an e acute, half an
                                                                                  // emoji, a euro, rubbish
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    TextStream stream({});
    std::string shown;
    for (size_t at = 0; at < text.size(); at += piece) {
      const std::string now = stream.add(std::string_view(text).substr(at, piece));
      CHECK(valid_utf8_prefix(now) == now.size());
      shown += now;
    }
    CHECK(shown + stream.finish() == to_valid_utf8(text));
  }
  TextStream stream({});
  CHECK(stream.add("a\xF0\x9F") == "a");
  CHECK(stream.add("\x98") == "");
  CHECK(stream.add("\x80") == "\xF0\x9F\x98\x80");
}

TEST_CASE("stop strings are never shown, wherever tokens cut them") {
  const std::string text = "one\n\ntw\n\n\nQ: three";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    TextStream stream({"\n\n\n", "Q:"});
    std::string shown;
    for (size_t at = 0; at < text.size(); at += piece) shown += stream.add(std::string_view(text).substr(at, piece));
    CHECK(stream.stopped());
    CHECK(shown + stream.finish() == "one\n\ntw");
  }
  TextStream stream({"stop", "\xF0\x9F\x98\x80"});
  CHECK(stream.add("a st") == "a ");
  CHECK(stream.add("o") == "");
  CHECK(stream.add("ne") == "stone");
  CHECK(stream.add(" \xF0\x9F") == " ");
  CHECK_FALSE(stream.stopped());
  CHECK(stream.add("\x98\x80 more") == "");
  CHECK(stream.stopped());
  CHECK(stream.add("more") == "");
  TextStream unfinished({"stop"});
  CHECK(unfinished.add("sto") == "");
  CHECK(unfinished.finish() == "sto");
}
