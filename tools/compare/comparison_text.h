// A comparison as text for the terminal and as JSON for scripts and the page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/compare/comparison.h"

namespace gpt2 {

// "fp8 is within 0.01 nats of bf16: +0.0016, standard error 0.0004 (3 seeds)."
std::string verdict_text(const Comparison& comparison, size_t group);
std::vector<std::string> comparison_table(const Comparison& comparison); // of 80 columns

// {"margin", "step", "loss": "validation" | "training", "notes", "groups": [{"name", "runs", "seeds", "loss",
//  "tokens_per_second", "memory_gb", "speed_ratio", "trouble", "verdict", "outcome", "paired",
//  "gap_loss": "validation" | "training", "gaps": {"step": {"mean", "error", "count", "at", "by_seed"}, ...},
//  "train": {"step": {"x", "mean", "low", "high"}, ...}, "validation": ..}]}
nlohmann::json comparison_json(const Comparison& comparison);

} // namespace gpt2
