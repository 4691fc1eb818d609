// --fp8_auto_fallback: watches the statistics of the FP8 recipe and says which blocks it does not fit. What it has
// counted is not part of a checkpoint: after a resume it counts anew.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/model/fp8_recipe.h"

namespace gpt2 {

class Fp8Guard {
 public:
  // Delayed scaling follows a jump within a step, and then saturates at most a growing tensor's few largest values: one
  // value in a hundred means that the scale is wrong. Three looks in a row mean that it stays so.
  static constexpr double kTooManySaturated = 0.01;
  static constexpr int kLooksInARow = 3;

  struct Finding {
    int layer;          // kLmHead: the LM head, which only --no-fp8_lm_head takes out of FP8
    std::string reason; // "h.7/fc/grad saturated 3.2% of its values three times in a row"
  };
  static constexpr int kLmHead = -1;

  // One look at the statistics of the last step: the blocks to leave in BF16 from now on, lowest first. A block, or the
  // LM head, is found once.
  std::vector<Finding> look(std::span<const Fp8TensorStats> stats);

 private:
  std::map<std::string, int> bad_looks_; // in a row, by the tensor's name; good ones are not listed
  std::set<int> found_;                  // layers
};

} // namespace gpt2
