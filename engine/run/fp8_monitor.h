// FP8 health from the recipe's amax and saturation statistics: the guard that moves bad blocks to BF16, the logged
// summary, and the table at the end of a run.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/model/fp8_recipe.h"
#include "engine/run/fp8_lag.h"

namespace gpt2 {

// --fp8_auto_fallback. Its counts are stored in checkpoints.
class Fp8Guard {
 public:
  explicit Fp8Guard(const std::string& text = ""); // the output of text(); malformed lines are ignored
  std::string text() const;                        // "h.7/fc/grad 2\nfound 3\n"; empty: no counts
  bool found_any() const { return !found_.empty(); }

  // Delayed scaling follows a jump within a step, and saturates only the few largest values of a growing tensor: 1%
  // means that the scale is wrong, three checks in a row that it stays wrong.
  static constexpr double kTooManySaturated = 0.01;
  static constexpr int kChecksInARow = 3;

  struct Finding {
    int layer;          // kLmHead: the LM head; only --no-fp8_lm_head moves it to BF16
    std::string reason; // "h.7/fc/grad saturated 3.2% of its values, the third such check in a row"
  };
  static constexpr int kLmHead = -1;

  // Clears the findings of all blocks that have statistics: a resumed run put them back in FP8.
  void forget_blocks_in(std::span<const Fp8TensorStats> stats);

  // The blocks to move to BF16 after a step with these statistics, ascending: each of them, and the LM head, only once.
  std::vector<Finding> check(std::span<const Fp8TensorStats> stats);

 private:
  std::map<std::string, int> bad_checks_; // consecutive, by tensor name; only counts above 0
  std::set<int> found_;                   // layers
};

// All values flushed to zero are smaller than GELU's output below -3.8: their share says nothing about the scale.
bool flushes_only_gelu_tail(const Fp8TensorStats& tensor);

// All tensors of a step in a few numbers.
struct Fp8Summary {
  double forward_scale = 0, backward_scale = 0;             // geometric means: activations and weights; gradients
  double worst_saturated = 0, worst_flushed = 0;            // excludes flushes_only_gelu_tail()
  std::string worst_saturated_tensor, worst_flushed_tensor; // "h.3/fc/act"; empty: no tensor
  int blocks_in_bf16 = 0;
};
Fp8Summary summarize(std::span<const Fp8TensorStats> stats, int layers);

// One kind of tensor over all layers.
struct Fp8Kind {
  std::string name; // "fc/act"
  Fp8Format format;
  float smallest_amax, largest_amax, smallest_scale, largest_scale;
  double worst_saturated, worst_flushed;
  bool fixed_scale;
};
std::vector<Fp8Kind> group_by_kind(std::span<const Fp8TensorStats> stats); // in the order of the forward pass

// If a tensor needs attention, or a scale lagged during the run, or `detailed`: one row per kind of tensor, then those
// tensors and scales. Otherwise one line; empty without statistics.
std::string fp8_health(std::span<const Fp8TensorStats> stats, const Fp8LagWatch& lag, bool detailed);

// Blocks of a model of `layers` blocks without a quantized tensor.
std::vector<int> unquantized_blocks(std::span<const Fp8TensorStats> stats, int layers);
std::string block_list(const std::vector<int>& blocks); // "block 7", "blocks 0, 3, 4"

} // namespace gpt2
