#include "engine/text/sample_text.h"

#include <cmath>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "engine/base/rng.h"
#include "engine/text/pretokenize.h"
#include "engine/text/sample_grammar.h"
#include "engine/text/tokenizer.h"

namespace gpt2 {
namespace {

// Draws one story after another: their tokens, and the -log p of all choices.
class TokenNarrator : public Narrator {
 public:
  explicit TokenNarrator(uint64_t seed) : seed_(seed) {
    for (const StoryWord& word : story_words()) words_.emplace(word.text, word.token);
  }

  void add_story(uint64_t index) {
    rng_ = Rng(seed_, index);
    draws_ = 0;
    tokens.push_back(Tokenizer::kEndOfText); // certain, because every story has a known last sentence
    tell_story(*this);
  }

  std::vector<uint16_t> tokens;
  double nats = 0;

 private:
  size_t pick(StoryOptions options) override {
    int total = 0;
    for (const StoryOption& option : options) total += option.weight;
    int left = static_cast<int>(rng_.uniform(draws_++) * total);
    size_t index = 0;
    while (left >= options[index].weight) left -= options[index++].weight;
    nats += std::log(static_cast<double>(total) / options[index].weight);
    return index;
  }

  void say(std::string_view phrase) override {
    for (size_t begin = 0, end; begin < phrase.size(); begin = end) {
      end = Splitter::next_ascii(phrase, begin);
      const std::string_view word = phrase.substr(begin, end - begin);
      const auto found = words_.find(word);
      if (found == words_.end()) throw std::logic_error("sample_words.cpp lacks \"" + std::string(word) + "\"");
      tokens.push_back(found->second);
    }
  }

  const uint64_t seed_;
  Rng rng_{0}; // of the current story
  uint64_t draws_ = 0;
  std::unordered_map<std::string_view, uint16_t> words_;
};

} // namespace

SampleTokens sample_tokens(uint64_t seed, int64_t stories) {
  TokenNarrator narrator(seed);
  narrator.tokens.reserve(stories * 128);
  for (int64_t index = 0; index < stories; index++) narrator.add_story(index);
  const double tokens = static_cast<double>(narrator.tokens.size());
  return {std::move(narrator.tokens), tokens > 0 ? narrator.nats / tokens : 0};
}

std::string sample_decode(const std::vector<uint16_t>& tokens) {
  std::unordered_map<uint16_t, std::string_view> words{{Tokenizer::kEndOfText, "<|endoftext|>"}};
  for (const StoryWord& word : story_words()) words.emplace(word.token, word.text);
  std::string text;
  for (const uint16_t token : tokens) {
    const auto found = words.find(token);
    if (found != words.end()) {
      text += found->second;
    } else {
      text.append("<").append(std::to_string(token)).append(">");
    }
  }
  return text;
}

} // namespace gpt2
