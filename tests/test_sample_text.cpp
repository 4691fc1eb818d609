#include "engine/text/sample_text.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/text/pretokenize.h"
#include "engine/text/sample_grammar.h"
#include "engine/text/tokenizer.h"
#include "tests/sample_stories.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

constexpr int kStories = 20000;

std::string_view first_word(std::string_view text) { return text.substr(0, Splitter::next_ascii(text, 0)); }

// A list of options is known by its words, because lists written in place have no lasting address.
std::string name_of(StoryOptions options) {
  std::string name;
  for (const StoryOption& option : options) name += std::string(option.text) + "|";
  return name;
}

int total_weight(StoryOptions options) {
  int total = 0;
  for (const StoryOption& option : options) total += option.weight;
  return total;
}

struct Tally {
  std::vector<StoryOption> options;
  std::vector<int> counts;
};

// Reads a written story back through the grammar: at each choice it looks which options the text goes on with.
class Reader : public Narrator {
 public:
  explicit Reader(std::string_view story) : rest(story) {}

  std::string_view rest;
  bool astray = false;      // the text is not a story
  int ambiguous = 0;        // choices where the next word does not decide
  double nats = 0;          // -log p of the choices taken
  double expected_nats = 0; // entropy of the choices met
  std::map<std::string, Tally>* tallies = nullptr;

 private:
  size_t pick(StoryOptions options) override {
    size_t chosen = 0, matching = 0;
    for (size_t i = 0; i < options.size(); i++) {
      if (first_word(options[i].text) == first_word(rest)) chosen = i, matching++;
    }
    astray |= matching == 0;
    ambiguous += matching > 1;
    const double total = total_weight(options);
    nats -= std::log(options[chosen].weight / total);
    for (const StoryOption& option : options) expected_nats -= option.weight / total * std::log(option.weight / total);
    if (tallies) {
      Tally& tally = (*tallies)[name_of(options)];
      tally.options.assign(options.begin(), options.end());
      tally.counts.resize(options.size());
      tally.counts[chosen]++;
    }
    return chosen;
  }
  void say(std::string_view phrase) override {
    astray |= !rest.starts_with(phrase);
    rest.remove_prefix(std::min(rest.size(), phrase.size()));
  }
};

} // namespace

TEST_CASE("a story is a pure function of seed and index") {
  CHECK(sample_stories(1, 6).back() == sample_stories(1, 20)[5]);
  std::set<std::string> stories;
  for (uint64_t seed = 0; seed < 10; seed++) {
    for (const std::string& story : sample_stories(seed, 100)) stories.insert(story);
  }
  CHECK(stories.size() == 1000);
  CHECK(sample_tokens(3, 50).tokens == sample_tokens(3, 50).tokens);
  CHECK(sample_tokens(3, 50).tokens != sample_tokens(4, 50).tokens);
}

TEST_CASE("tokens decode to the stories, each after an end of text") {
  const std::vector<uint16_t> tokens = sample_tokens(9, 200).tokens;
  CHECK(tokens[0] == Tokenizer::kEndOfText);
  CHECK(std::ranges::count(tokens, Tokenizer::kEndOfText) == 200);
  CHECK(sample_decode(tokens).starts_with("<|endoftext|>Far away, there lived a little boy named Ben. He lived near "));
  CHECK(sample_decode(sample_tokens(9, 1).tokens).ends_with("fell asleep with the green drum by his side."));
  CHECK(sample_decode({11, 1, 50000}) == ",<1><50000>");
  CHECK(sample_tokens(9, 0).tokens.empty());
}

TEST_CASE("the tokens are those of GPT-2's tokenizer") {
  const std::string folder = Tokenizer::find_folder("");
  if (folder.empty()) {
    MESSAGE("skipped: no tokenizer tables; run tools/install_deps.sh");
    return;
  }
  const Tokenizer tokenizer(folder);
  for (const StoryWord& word : story_words()) {
    CAPTURE(word.text);
    CHECK(tokenizer.encode(word.text) == std::vector<uint16_t>{word.token});
  }
  std::vector<uint16_t> expected;
  for (const std::string& story : sample_stories(2, 2000)) {
    expected.push_back(Tokenizer::kEndOfText);
    tokenizer.encode(story, expected);
  }
  CHECK(sample_tokens(2, 2000).tokens == expected);
}

TEST_CASE("every word of the table is used") {
  std::set<uint16_t> used;
  for (const uint16_t token : sample_tokens(1, kStories).tokens) used.insert(token);
  CHECK(used.size() == story_words().size() + 1); // and the end of text
}

TEST_CASE("each story can be told in one way only, and -log p is that way's") {
  double nats = 0, expected_nats = 0;
  std::map<std::string, Tally> tallies;
  for (const std::string& story : sample_stories(1, kStories)) {
    Reader reader(story);
    reader.tallies = &tallies;
    tell_story(reader);
    CAPTURE(story);
    REQUIRE_FALSE(reader.astray);
    REQUIRE(reader.ambiguous == 0);
    REQUIRE(reader.rest.empty());
    nats += reader.nats;
    expected_nats += reader.expected_nats;
  }
  const SampleTokens sample = sample_tokens(1, kStories);
  const double tokens = static_cast<double>(sample.tokens.size());
  CHECK(sample.entropy_per_token == doctest::Approx(nats / tokens).epsilon(1e-9));
  // What was drawn carries the information that the weights promise.
  CHECK(sample.entropy_per_token == doctest::Approx(expected_nats / tokens).epsilon(0.005));
  MESSAGE("entropy per token " << sample.entropy_per_token << ", tokens per story " << tokens / kStories);
  CHECK(sample.entropy_per_token > 0.3);
  CHECK(sample.entropy_per_token < 1.0);

  CHECK(tallies.size() > 30);
  for (const auto& [name, tally] : tallies) {
    CAPTURE(name);
    std::set<std::string_view> first_words;
    for (const StoryOption& option : tally.options) first_words.insert(first_word(option.text));
    CHECK(first_words.size() == tally.options.size());

    double draws = 0;
    for (const int count : tally.counts) draws += count;
    for (size_t i = 0; i < tally.options.size(); i++) {
      const double p = static_cast<double>(tally.options[i].weight) / total_weight(tally.options);
      CHECK(std::abs(tally.counts[i] - draws * p) < 5 * std::sqrt(draws * p * (1 - p))); // 5 standard deviations
    }
  }
}

TEST_CASE("stories are of a size, and agree with themselves") {
  for (const std::string& told : sample_stories(6, 2000)) {
    const std::string story = " " + told;
    CAPTURE(story);
    const auto words = std::count(story.begin(), story.end(), ' ');
    CHECK(words > 60);
    CHECK(words < 120);
    const bool she = story.find(" She ") != std::string::npos, he = story.find(" He ") != std::string::npos;
    CHECK(she != he);
    CHECK((story.find(he ? " her " : " his ") == std::string::npos));
    if (story.find(" girl named") != std::string::npos) CHECK(she);
    if (story.find(" boy named") != std::string::npos) CHECK(he);
    for (const char* vowel : {"a", "e", "i", "o", "u"})
      CHECK(story.find(std::string(" a ") + vowel) == std::string::npos);
    CHECK(story.ends_with("."));

    const size_t start = story.find(" named ") + 7;
    const std::string name = story.substr(start, story.find('.', start) - start);
    CHECK(story.find(name, start + 20) != std::string::npos); // the name comes back
  }
}
