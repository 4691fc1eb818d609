#include "engine/run/fp8_monitor.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/base/formatted.h"

namespace gpt2 {
namespace {

// ---- the guard ----

constexpr const char* kFound = "found"; // not a tensor name: those have slashes

// Empty: the tensor is healthy.
std::string trouble_of(const Fp8TensorStats& tensor) {
  if (tensor.fixed_scale) return "";
  if (!std::isfinite(tensor.amax)) return "overflowed";
  if (!std::isfinite(tensor.scale) || tensor.scale <= 0) return "lost its scale";
  if (!(tensor.saturated > Fp8Guard::kTooManySaturated)) return "";
  return formatted("saturated %.1f%% of its values", 100 * tensor.saturated);
}

// ---- flushed values ----

// |GELU(x)| is below this for all x < -3.8, so GELU outputs cluster at zero: a trained block of 124M flushes 60% of
// them, values below 0.00008 next to others up to 17 (docs/fp8.md).
constexpr float kGeluTail = 0.0002f;

double flushed_above_gelu_tail(const Fp8TensorStats& s) { return flushes_only_gelu_tail(s) ? 0.0 : s.flushed; }

// ---- the summary ----

// Scales differ by powers of two: the mean of the exponents keeps one large scale from hiding the others.
double geometric_mean(const std::vector<double>& values) {
  double log_sum = 0;
  for (const double value : values) log_sum += std::log(value);
  return values.empty() ? 0.0 : std::exp(log_sum / static_cast<double>(values.size()));
}

// ---- the table ----

// Thresholds for naming a tensor: delayed scaling saturates a value now and then, and E4M3 flushes the smallest few.
constexpr double kManySaturated = 0.01;
constexpr double kManyFlushed = 0.25;

std::string range(float low, float high) {
  return formatted("%.1e..%.1e", static_cast<double>(low), static_cast<double>(high));
}

std::string percent(double share) { return formatted("%.4f%%", 100 * share); }

std::string lines_on_troubles(std::span<const Fp8TensorStats> stats) {
  std::string out;
  for (const Fp8TensorStats& s : stats) {
    const bool healthy =
        trouble_of(s).empty() && s.saturated < kManySaturated && flushed_above_gelu_tail(s) < kManyFlushed;
    if (s.fixed_scale || healthy) continue;
    out += formatted("  check %s: %.2f%% saturated, %.2f%% flushed to zero\n", s.tensor.text().c_str(),
                     100 * s.saturated, 100 * s.flushed);
  }
  return out;
}

} // namespace

bool flushes_only_gelu_tail(const Fp8TensorStats& tensor) {
  const float largest = fp8_smallest(tensor.format) / 2 / tensor.scale; // value that rounds to zero
  return tensor.tensor.is_gelu_output() && tensor.flushed > 0 && largest < kGeluTail;
}

Fp8Guard::Fp8Guard(const std::string& text) {
  std::istringstream lines(text);
  std::string name;
  for (int number = 0; lines >> name >> number;) {
    if (name == kFound)
      found_.insert(number);
    else
      bad_checks_[name] = number;
  }
}

std::string Fp8Guard::text() const {
  std::string text;
  for (const auto& [name, checks] : bad_checks_) text += name + " " + std::to_string(checks) + "\n";
  for (const int layer : found_) text += std::string(kFound) + " " + std::to_string(layer) + "\n";
  return text;
}

void Fp8Guard::forget_blocks_in(std::span<const Fp8TensorStats> stats) {
  for (const Fp8TensorStats& tensor : stats) {
    if (!tensor.tensor.is_lm_head()) found_.erase(tensor.tensor.layer);
  }
}

std::vector<Fp8Guard::Finding> Fp8Guard::check(std::span<const Fp8TensorStats> stats) {
  std::map<std::string, int> bad_checks;
  std::map<int, std::string> reasons; // by layer, the first tensor of each
  for (const Fp8TensorStats& tensor : stats) {
    const std::string trouble = trouble_of(tensor);
    if (trouble.empty()) continue;
    const std::string name = tensor.tensor.text();
    const int checks = bad_checks[name] = bad_checks_[name] + 1;
    const int layer = tensor.tensor.is_lm_head() ? kLmHead : tensor.tensor.layer;
    if (checks >= kChecksInARow) reasons.emplace(layer, name + " " + trouble + ", the third such check in a row");
  }
  bad_checks_ = std::move(bad_checks);

  std::vector<Finding> findings;
  for (const auto& [layer, reason] : reasons) {
    if (found_.insert(layer).second) findings.push_back({layer, reason});
  }
  return findings;
}

Fp8Summary summarize(std::span<const Fp8TensorStats> stats, int layers) {
  Fp8Summary summary;
  summary.blocks_in_bf16 = static_cast<int>(unquantized_blocks(stats, layers).size());
  std::vector<double> forward, backward; // scales
  for (const Fp8TensorStats& s : stats) {
    if (s.fixed_scale) continue;
    (s.tensor.role == Fp8Role::grad ? backward : forward).push_back(static_cast<double>(s.scale));
    if (s.saturated > summary.worst_saturated) {
      summary.worst_saturated = s.saturated;
      summary.worst_saturated_tensor = s.tensor.text();
    }
    if (flushed_above_gelu_tail(s) > summary.worst_flushed) {
      summary.worst_flushed = s.flushed;
      summary.worst_flushed_tensor = s.tensor.text();
    }
  }
  summary.forward_scale = geometric_mean(forward);
  summary.backward_scale = geometric_mean(backward);
  return summary;
}

std::vector<Fp8Kind> group_by_kind(std::span<const Fp8TensorStats> stats) {
  std::vector<Fp8Kind> kinds; // in order of first appearance: the order of the forward pass
  for (const Fp8TensorStats& s : stats) {
    const std::string name = s.tensor.kind();
    auto found = std::ranges::find(kinds, name, &Fp8Kind::name);
    if (found == kinds.end())
      found = kinds.insert(found, {name, s.format, s.amax, s.amax, s.scale, s.scale, 0, 0, s.fixed_scale});
    found->smallest_amax = std::min(found->smallest_amax, s.amax);
    found->largest_amax = std::max(found->largest_amax, s.amax);
    found->smallest_scale = std::min(found->smallest_scale, s.scale);
    found->largest_scale = std::max(found->largest_scale, s.scale);
    found->worst_saturated = std::max(found->worst_saturated, s.saturated);
    found->worst_flushed = std::max(found->worst_flushed, s.flushed);
  }
  return kinds;
}

std::string fp8_health(std::span<const Fp8TensorStats> stats, const Fp8LagWatch& lag, bool detailed) {
  if (stats.empty()) return "";
  const std::string troubles = lines_on_troubles(stats) + lag.lines();
  if (troubles.empty() && !detailed) return "FP8 health: no tensor needs attention (--fp8_detail prints a table)";
  std::string out = "FP8 health of the last step (worst layer); lags: checks of the run in which it saturated\n" +
                    formatted(" %-14s %-4s %-16s %-16s %9s %8s %5s\n", "tensor", "", "amax, all layers", "scale",
                              "saturated", "flushed", "lags");
  for (const Fp8Kind& kind : group_by_kind(stats)) {
    const bool measured = !kind.fixed_scale;
    out += formatted(
        " %-14s %-4s %-16s %-16s %9s %8s %5s\n", kind.name.c_str(), std::string(to_string(kind.format)).c_str(),
        measured ? range(kind.smallest_amax, kind.largest_amax).c_str() : "static",
        range(kind.smallest_scale, kind.largest_scale).c_str(), measured ? percent(kind.worst_saturated).c_str() : "-",
        measured ? percent(kind.worst_flushed).c_str() : "-",
        measured ? std::to_string(lag.saturated_checks(kind.name)).c_str() : "-");
  }
  out += troubles;
  out.pop_back();
  return out;
}

std::vector<int> unquantized_blocks(std::span<const Fp8TensorStats> stats, int layers) {
  std::set<int> blocks;
  for (int block = 0; block < layers; ++block) blocks.insert(block);
  for (const Fp8TensorStats& tensor : stats) {
    if (!tensor.tensor.is_lm_head()) blocks.erase(tensor.tensor.layer);
  }
  return {blocks.begin(), blocks.end()};
}

std::string block_list(const std::vector<int>& blocks) {
  return (blocks.size() == 1 ? "block " : "blocks ") + listed(blocks);
}

} // namespace gpt2
