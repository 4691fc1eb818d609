#include "engine/text/sample_text.h"

#include <cmath>
#include <stdexcept>
#include <unordered_map>

#include "engine/base/rng.h"
#include "engine/text/pretokenize.h"
#include "engine/text/sample_grammar.h"
#include "engine/text/tokenizer.h"

namespace gpt2 {
namespace {

// Draws the choices of one story after another and adds up their -log p.
class RandomNarrator : public Narrator {
 public:
  void tell_story(uint64_t seed, uint64_t index) {
    rng_ = Rng(seed, index);
    draws_ = 0;
    gpt2::tell_story(*this);
  }
  double nats() const { return nats_; }

 protected:
  size_t pick(StoryOptions options) override {
    int total = 0;
    for (const StoryOption& option : options) total += option.weight;
    int left = static_cast<int>(rng_.uniform(draws_++) * total);
    size_t index = 0;
    while (left >= options[index].weight) left -= options[index++].weight;
    nats_ += std::log(static_cast<double>(total) / options[index].weight);
    return index;
  }

 private:
  Rng rng_{0};
  uint64_t draws_ = 0;
  double nats_ = 0;
};

class TextNarrator : public RandomNarrator {
 public:
  std::string text;

 private:
  void say(std::string_view phrase) override { text += phrase; }
};

class TokenNarrator : public RandomNarrator {
 public:
  explicit TokenNarrator(std::vector<uint16_t>& tokens) : tokens_(tokens) {
    for (const StoryWord& word : story_words()) words_.emplace(word.text, word.token);
  }

 private:
  void say(std::string_view phrase) override {
    auto known = phrases_.find(phrase);
    if (known == phrases_.end()) known = phrases_.emplace(phrase, tokenize(phrase)).first;
    tokens_.insert(tokens_.end(), known->second.begin(), known->second.end());
  }

  std::vector<uint16_t> tokenize(std::string_view phrase) const {
    std::vector<uint16_t> tokens;
    for (size_t begin = 0, end; begin < phrase.size(); begin = end) {
      end = Splitter::next_ascii(phrase, begin);
      const std::string word(phrase.substr(begin, end - begin));
      const auto found = words_.find(word);
      if (found == words_.end()) throw std::logic_error("sample_words.cpp lacks \"" + word + "\"");
      tokens.push_back(found->second);
    }
    return tokens;
  }

  std::vector<uint16_t>& tokens_;
  std::unordered_map<std::string_view, uint16_t> words_;
  std::unordered_map<std::string_view, std::vector<uint16_t>> phrases_; // met before; keys are string literals
};

} // namespace

std::string sample_story(uint64_t seed, uint64_t index) {
  TextNarrator narrator;
  narrator.tell_story(seed, index);
  return narrator.text;
}

SampleTokens sample_tokens(uint64_t seed, int64_t stories) {
  SampleTokens sample{{}, 0};
  sample.tokens.reserve(stories * 128);
  TokenNarrator narrator(sample.tokens);
  for (int64_t index = 0; index < stories; index++) {
    sample.tokens.push_back(Tokenizer::kEndOfText); // certain, because every story has a known last sentence
    narrator.tell_story(seed, index);
  }
  if (!sample.tokens.empty()) sample.entropy_per_token = narrator.nats() / static_cast<double>(sample.tokens.size());
  return sample;
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
