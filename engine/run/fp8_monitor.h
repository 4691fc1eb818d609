// How well the FP8 recipe fits, read from its statistics: the guard that finds blocks it does not fit, the summary that
// is logged, and the table at the end of a run.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/model/fp8_recipe.h"
#include "engine/run/fp8_saturation.h"

namespace gpt2 {

// --fp8_auto_fallback. What it has counted goes into checkpoints.
class Fp8Guard {
 public:
  Fp8Guard() = default;
  explicit Fp8Guard(const std::string& text); // as text() wrote it; lines that say nothing are passed over
  std::string text() const;                   // "h.7/fc/grad 2\nfound 3\n"; empty: nothing counted

  // Delayed scaling follows a jump within a step, and then saturates at most a growing tensor's few largest values: one
  // value in a hundred means that the scale is wrong. Three looks in a row mean that it stays so.
  static constexpr double kTooManySaturated = 0.01;
  static constexpr int kLooksInARow = 3;

  struct Finding {
    int layer;          // kLmHead: the LM head, which only --no-fp8_lm_head takes out of FP8
    std::string reason; // "h.7/fc/grad saturated 3.2% of its values three times in a row"
  };
  static constexpr int kLmHead = -1;

  // Blocks of which there are statistics are in FP8 (again: a new recipe gives each its chance), whatever was found.
  void forget_blocks_in(std::span<const Fp8TensorStats> stats);

  // One look at the statistics of the last step: the blocks to leave in BF16 from now on, lowest first. A block, or the
  // LM head, is found once.
  std::vector<Finding> look(std::span<const Fp8TensorStats> stats);

 private:
  std::map<std::string, int> bad_looks_; // in a row, by the tensor's name; good ones are not listed
  std::set<int> found_;                  // layers
};

// Something was flushed to zero, but nothing larger than what GELU leaves of any input below -3.8: a share that says
// nothing of the tensor's scale.
bool flushes_gelus_tail_alone(const Fp8TensorStats& tensor);

// All tensors of a step in a few numbers.
struct Fp8Summary {
  double forward_scale = 0, backward_scale = 0;  // geometric means, of activations and weights, and of gradients
  double worst_saturated = 0, worst_flushed = 0; // without flushes_gelus_tail_alone()
  std::string worst_saturated_tensor, worst_flushed_tensor; // "h.3/fc/act"; empty: no value of any tensor was
  int blocks_in_bf16 = 0;
};
Fp8Summary summarize(std::span<const Fp8TensorStats> stats, int layers);

// The same tensor of all layers.
struct Fp8Kind {
  std::string name; // "fc/act"
  Fp8Format format;
  float smallest_amax, largest_amax, smallest_scale, largest_scale;
  double worst_saturated, worst_flushed;
  int tensors;
  bool fixed_scale;
};
std::vector<Fp8Kind> group_by_kind(std::span<const Fp8TensorStats> stats); // in the order of the forward pass

// One row per kind of tensor over all layers, the tensors that need attention, and the scales that lagged on the way;
// empty if there are no statistics.
std::string fp8_health_table(std::span<const Fp8TensorStats> stats, const Fp8LagWatch& lag);

// Blocks of a model of `layers` of which no tensor is quantized.
std::vector<int> unquantized_blocks(std::span<const Fp8TensorStats> stats, int layers);
std::string block_list(const std::vector<int>& blocks); // "block 7", "blocks 0, 3, 4"

} // namespace gpt2
