#include "engine/train/fp8_guard.h"

#include <cmath>
#include <cstdio>

namespace gpt2 {
namespace {

// What is wrong with the tensor; empty: nothing.
std::string trouble_of(const Fp8TensorStats& tensor) {
  if (tensor.fixed_scale) return "";
  if (!std::isfinite(tensor.amax)) return "overflowed";
  if (!std::isfinite(tensor.scale) || tensor.scale <= 0) return "lost its scale";
  if (!(tensor.saturated > Fp8Guard::kTooManySaturated)) return "";
  char text[64];
  std::snprintf(text, sizeof text, "saturated %.1f%% of its values", 100 * tensor.saturated);
  return text;
}

} // namespace

std::vector<Fp8Guard::Finding> Fp8Guard::look(std::span<const Fp8TensorStats> stats) {
  std::map<std::string, int> bad_looks;
  std::map<int, std::string> reasons; // by layer, the first tensor of each
  for (const Fp8TensorStats& tensor : stats) {
    const std::string trouble = trouble_of(tensor);
    if (trouble.empty()) continue;
    const std::string name = tensor.tensor.text();
    const int looks = bad_looks[name] = bad_looks_[name] + 1;
    const int layer = tensor.tensor.is_lm_head() ? kLmHead : tensor.tensor.layer;
    if (looks >= kLooksInARow) reasons.emplace(layer, name + " " + trouble + " three times in a row");
  }
  bad_looks_ = std::move(bad_looks);

  std::vector<Finding> findings;
  for (const auto& [layer, reason] : reasons) {
    if (found_.insert(layer).second) findings.push_back({layer, reason});
  }
  return findings;
}

} // namespace gpt2
