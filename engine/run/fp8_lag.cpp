#include "engine/run/fp8_lag.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>
#include <vector>

#include "engine/base/formatted.h"

namespace gpt2 {
namespace {

constexpr int kMostMargin = 3;      // above it E4M3 loses its small values
constexpr int kUsefulHistory = 64;  // steps: outlier batches come every few dozen
constexpr double kFewBlocks = 0.25; // largest share of BF16 blocks at which FP8 still pays

// Non-finite values are Fp8Guard's: no scale helps.
bool saturates(const Fp8TensorStats& tensor) {
  return !tensor.fixed_scale && tensor.saturated >= Fp8LagWatch::kNoticed && std::isfinite(tensor.amax);
}

} // namespace

// A kind of tensor in one check.
struct Fp8LagWatch::Finding {
  std::string kind;
  const Fp8TensorStats* worst = nullptr; // largest saturated share; null: none saturates
  float amax = 0;                        // largest of the saturated tensors
  double beyond = 1;                     // largest value / largest representable value, at least 1
  std::vector<int> blocks;               // that saturate
  bool grows = false;                    // amax above that of all earlier checks
};

Fp8LagWatch::Fp8LagWatch(Setting setting, const std::string& text) : setting_(std::move(setting)) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    Kind kind;
    if (!(words >> name >> kind.recent >> kind.checks >> kind.amax >> kind.reported_step)) continue;
    std::getline(words >> std::ws, kind.report);
    kinds_[name] = kind;
  }
}

std::string Fp8LagWatch::text() const {
  std::string text;
  for (const auto& [name, kind] : kinds_) {
    text += concat(name, " ", kind.recent, " ", kind.checks, formatted(" %.9g ", static_cast<double>(kind.amax)),
                   kind.reported_step, kind.report.empty() ? "" : " " + kind.report, "\n");
  }
  return text;
}

std::optional<Fp8LagWatch::Warning> Fp8LagWatch::check(int64_t step, std::span<const Fp8TensorStats> stats) {
  for (const Fp8TensorStats& tensor : stats) {
    if (saturates(tensor)) kinds_.try_emplace(tensor.tensor.kind());
  }
  int64_t last_reported = -kStepsApart;
  for (const auto& [name, kind] : kinds_) {
    if (kind.reported_step > 0) last_reported = std::max(last_reported, kind.reported_step);
  }
  std::vector<Finding> news;
  for (auto& [name, kind] : kinds_) {
    const Finding finding = worst_of(name, stats);
    const bool seen = finding.worst != nullptr;
    kind.recent = (kind.recent << 1 | (seen ? 1 : 0)) & ((1u << kWindow) - 1);
    if (!seen) continue;
    kind.checks += 1;
    kind.amax = std::max(kind.amax, finding.amax);
    if (kind.report.empty() && recurs(kind, step) && step - last_reported >= kStepsApart) news.push_back(finding);
  }
  if (news.empty()) return std::nullopt;

  std::ranges::sort(news, [](const Finding& a, const Finding& b) { return a.worst->saturated > b.worst->saturated; });
  std::string others;
  for (const Finding& finding : news) {
    Kind& kind = kinds_[finding.kind];
    kind.reported_step = step;
    kind.report = describe(finding, step);
    if (&finding != &news.front()) others += (others.empty() ? "; these lag too: " : ", ") + finding.kind;
  }
  const Finding& first = news.front();
  return Warning{.tensor = first.worst->tensor.text(),
                 .saturated = first.worst->saturated,
                 .text = kinds_[first.kind].report + others};
}

bool Fp8LagWatch::recurs(const Kind& kind, int64_t step) const {
  return std::popcount(kind.recent) >= (warms_up(step) ? kChecksInWarmUp : kChecksLater);
}

Fp8LagWatch::Finding Fp8LagWatch::worst_of(const std::string& kind, std::span<const Fp8TensorStats> stats) const {
  Finding finding{.kind = kind, .blocks = {}};
  for (const Fp8TensorStats& tensor : stats) {
    if (!saturates(tensor) || tensor.tensor.kind() != kind) continue;
    if (!finding.worst || tensor.saturated > finding.worst->saturated) finding.worst = &tensor;
    const float held = fp8_max(tensor.format) / tensor.scale;
    finding.amax = std::max(finding.amax, tensor.amax);
    finding.beyond = std::max(finding.beyond, static_cast<double>(tensor.amax / held));
    finding.blocks.push_back(tensor.tensor.layer);
  }
  finding.grows = finding.amax > kinds_.at(kind).amax;
  return finding;
}

// "the scale of fc/grad lags: 0.13% of h.3/fc/grad saturated at step 20, in the warm-up; --fp8_margin 3 leaves ..."
std::string Fp8LagWatch::describe(const Finding& finding, int64_t step) const {
  return concat("the scale of ", finding.kind, formatted(" lags: %.3g%% of ", 100 * finding.worst->saturated),
                finding.worst->tensor.text(), " saturated at step ", step, warms_up(step) ? ", in the warm-up" : "",
                formatted(", values up to %.2g times its range; ", finding.beyond), advice(finding, step));
}

std::string Fp8LagWatch::advice(const Finding& finding, int64_t step) const {
  const Fp8Options& fp8 = setting_.fp8;
  if (fp8.interval > 1) return "--fp8_interval 1 lets it follow";
  if (!finding.grows) { // values of this size occurred before the amax history began
    const int history = std::min(std::max(kUsefulHistory, 4 * fp8.amax_history), kMaxAmaxHistory);
    return concat("--fp8_amax_history ", history, " remembers such batches");
  }
  const int margin = fp8.margin + static_cast<int>(std::ceil(std::log2(finding.beyond)));
  std::string text = "--fp8_recipe current lets it follow";
  if (warms_up(step))
    text = concat("--fp8_current_steps ", setting_.warmup_steps - fp8.bf16_steps, " lets it follow");
  else if (margin <= kMostMargin)
    text = concat("--fp8_margin ", margin, " leaves room for it");
  if (warms_up(step)) text += concat(", --warmup_steps ", 2 * setting_.warmup_steps, " slows the growth");
  if (finding.worst->tensor.is_lm_head())
    text += ", --no-fp8_lm_head avoids it";
  else if (static_cast<double>(finding.blocks.size()) <= kFewBlocks * setting_.layers) {
    text += ", --fp8_bf16_layers " + listed(finding.blocks, ",") + " avoids it";
  }
  return text;
}

int64_t Fp8LagWatch::saturated_checks(const std::string& kind) const {
  const auto found = kinds_.find(kind);
  return found == kinds_.end() ? 0 : found->second.checks;
}

std::string Fp8LagWatch::lines() const {
  std::string lines;
  for (const auto& [name, kind] : kinds_) {
    if (!kind.report.empty()) lines += "  " + kind.report + "\n";
  }
  return lines;
}

} // namespace gpt2
