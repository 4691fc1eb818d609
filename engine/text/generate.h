// Texts from a model: rows of a decoder, each reproducible from its seed and stream alone, whatever else is in the
// batch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/enum_names.h"
#include "engine/model/model.h"
#include "engine/text/sampling.h"

namespace gpt2 {

struct GenerationSettings {
  int tokens = 64; // to write after the prompt
  SamplingSettings sampling = {};
  bool bos = true; // end-of-text before the prompt, as before each document in training
  uint64_t seed = 1;
  bool slide = true; // at the end of the decoder's positions, go on from the last half of them; else end there
};

struct Prompt {
  std::vector<uint16_t> tokens; // may be empty; the text begins with end-of-text, as documents do
  uint64_t stream = 0;          // tells one text of a seed from the next
};

enum class Ending {
  length,       // as many tokens as asked for
  end_of_text,  // the model says so; the token is not among those written
  stopped,      // by who listened
  interrupted,  // by who waits
  no_positions, // the decoder's are full, and it may not slide
  not_finite,   // logits that are no numbers: the weights are ruined
};

constexpr auto names_of(Ending) {
  using enum Ending;
  return std::to_array<EnumName<Ending>>({{length, "length"},
                                          {end_of_text, "end_of_text"},
                                          {stopped, "stop"},
                                          {interrupted, "interrupted"},
                                          {no_positions, "positions"},
                                          {not_finite, "not_finite"}});
}

struct WrittenText {
  std::vector<uint16_t> tokens; // without the prompt
  Ending ending = Ending::interrupted;
  int slides = 0; // how often the text was read again from its last half
};

struct Generation {
  std::vector<WrittenText> texts; // by prompt
  int64_t prompt_tokens = 0, decoded_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0; // until the first token of all, and from there on
};

struct Listeners {
  // Each token as it is chosen; false ends that text with it.
  std::function<bool(size_t text, uint16_t token)> token = [](size_t, uint16_t) { return true; };
  std::function<bool()> interrupted = [] { return false; }; // asked before each round of tokens
};

// One text a row, at most decoder.rows() of them. A prompt longer than the decoder's positions is read from its end.
Generation generate(Decoder& decoder, std::span<const Prompt> prompts, const GenerationSettings& settings,
                    const Listeners& listeners = {});

// One text by a decoder of its own: the prompt and what follows.
std::vector<uint16_t> write_sample(
    EvaluableModel& model, const Prompt& prompt, const GenerationSettings& settings,
    const std::function<bool()>& interrupted = [] { return false; });

} // namespace gpt2
