// The grammar of the built-in stories, as a function: tell_story() says fixed phrases and asks for choices, and each
// choice is said at once. In any one choice the options start with different tokens, so a story's tokens tell every
// choice that made it: no two ways of telling give the same text, and the sum of -log p over the choices is the story's
// exact -log p.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace gpt2 {

struct StoryOption {
  std::string_view text; // with its leading space
  int weight = 1;        // probability = weight / sum of the weights
};
using StoryOptions = std::span<const StoryOption>;

// Who makes the choices and hears the story: the generator draws at random, tests may force or count.
class Narrator {
 public:
  virtual ~Narrator() = default;

  size_t choose(StoryOptions options) {
    const size_t index = pick(options);
    say(options[index].text);
    return index;
  }
  size_t choose(std::initializer_list<StoryOption> options) { return choose({options.begin(), options.size()}); }
  std::string_view word(StoryOptions options) { return options[choose(options)].text; }

  // Says each phrase, and one option of each list.
  template <class... Parts>
  void tell(const Parts&... parts) {
    (add(parts), ...);
  }

 protected:
  virtual size_t pick(StoryOptions options) = 0;
  virtual void say(std::string_view phrase) = 0;

 private:
  void add(std::string_view phrase) { say(phrase); }
  void add(StoryOptions options) { choose(options); }
};

void tell_story(Narrator& narrator);

// Every word of the stories (with its leading space, or punctuation) is one GPT-2 token.
struct StoryWord {
  std::string_view text;
  uint16_t token;
};
std::span<const StoryWord> story_words(); // sorted by text

} // namespace gpt2
