// How well the FP8 recipe fits: one row per kind of tensor over all layers, and the tensors that need attention.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/model/fp8_recipe.h"

namespace gpt2 {

// A table; empty if there are no statistics.
std::string fp8_health_table(std::span<const Fp8TensorStats> stats);

// Blocks of a model of `layers` of which no tensor is quantized.
std::vector<int> unquantized_blocks(std::span<const Fp8TensorStats> stats, int layers);
std::string block_list(const std::vector<int>& blocks); // "block 7", "blocks 0, 3, 4"

} // namespace gpt2
