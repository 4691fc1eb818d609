// Generates texts: one per row of a decoder. A text depends on its prompt, seed and stream, not on the rest of the
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
  int tokens = 64; // after the prompt
  SamplingSettings sampling = {};
  bool bos = true; // end-of-text before the prompt, as before each document in training
  uint64_t seed = 1;
  bool slide = true; // when the positions are full: prefill the last half and continue; false: end
};

struct Prompt {
  std::vector<uint16_t> tokens; // may be empty: end-of-text precedes it, as in training
  uint64_t stream = 0;          // RNG stream: distinguishes the texts of one seed
};

enum class Ending {
  length,       // the requested number of tokens
  end_of_text,  // the model drew the token, which is not part of the text
  stopped,      // Listeners::token returned false
  interrupted,  // Listeners::interrupted returned true
  no_positions, // the positions are full, and slide is off
  not_finite,   // NaN logits: damaged weights
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
  int slides = 0; // prefills of the last half
};

struct Generation {
  std::vector<WrittenText> texts; // by prompt
  int64_t prompt_tokens = 0, decoded_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0; // before and after the first tokens
};

struct Listeners {
  // Called for each token; false ends that text.
  std::function<bool(size_t text, uint16_t token)> token = [](size_t, uint16_t) { return true; };
  std::function<bool()> interrupted = [] { return false; }; // called before each decode step
};

// At most decoder.rows() prompts. Of a prompt longer than the decoder's positions, the last tokens are used.
Generation generate(Decoder& decoder, std::span<const Prompt> prompts, const GenerationSettings& settings,
                    const Listeners& listeners = {});

// One text with a new decoder; returns prompt and continuation.
std::vector<uint16_t> write_sample(
    EvaluableModel& model, const Prompt& prompt, const GenerationSettings& settings,
    const std::function<bool()>& interrupted = [] { return false; });

} // namespace gpt2
