// Sequences per optimizer step as a function of the step: --batch_ramp, or the same number in every step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2 {

class BatchRamp {
 public:
  struct Phase {
    int sequences;
    int64_t first; // completed steps at its start
  };

  BatchRamp() : BatchRamp(1) {}
  explicit BatchRamp(int sequences) : phases_{{.sequences = sequences, .first = 0}} {}
  explicit BatchRamp(const std::string& text); // "128@0,256@2000"; throws std::invalid_argument

  int at(int64_t step) const; // `step` counts from 0
  int last() const { return phases_.back().sequences; }
  int common_divisor() const; // greatest, of all phases
  const std::vector<Phase>& phases() const { return phases_; }

  double sequences_before(int64_t step) const; // in the first `step` steps; exact below 2^53
  int64_t steps_for(double sequences) const;   // the fewest that read this number of them; at least 1

 private:
  std::vector<Phase> phases_; // of ascending `first`, from 0
};

// "128 sequences, 256 from step 2001, 512 from step 6001": steps count from 1, as in logs.
std::string to_text(const BatchRamp& ramp);

} // namespace gpt2
