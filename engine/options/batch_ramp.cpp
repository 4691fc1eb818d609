#include "engine/options/batch_ramp.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "engine/base/formatted.h"
#include "engine/base/parse_number.h"
#include "engine/base/split.h"

namespace gpt2 {
namespace {

BatchRamp::Phase to_phase(const std::string& text) {
  const std::vector<std::string> parts = split(text, '@');
  const std::optional<int> sequences = parse_number<int>(parts.front());
  const std::optional<int64_t> first = parse_number<int64_t>(parts.back());
  if (parts.size() != 2 || !sequences || !first || *sequences < 1 || *first < 0)
    throw std::invalid_argument("'" + text + "' is not SEQUENCES@STEP, as in 128@0,256@2000,512@6000");
  return {.sequences = *sequences, .first = *first};
}

} // namespace

BatchRamp::BatchRamp(const std::string& text) {
  std::string list = text;
  std::erase(list, ' ');
  for (const std::string& item : split(list, ',')) {
    const Phase phase = to_phase(item);
    if (phases_.empty() && phase.first != 0)
      throw std::invalid_argument("'" + item + "' is the first: it must begin at step 0, as 128@0,256@2000");
    if (!phases_.empty() && phase.first <= phases_.back().first)
      throw std::invalid_argument("'" + item + "' must begin after step " + std::to_string(phases_.back().first));
    phases_.push_back(phase);
  }
}

int BatchRamp::at(int64_t step) const {
  const auto after = std::ranges::upper_bound(phases_, step, {}, &Phase::first);
  return std::prev(after)->sequences;
}

int BatchRamp::common_divisor() const {
  int divisor = 0;
  for (const Phase& phase : phases_) divisor = std::gcd(divisor, phase.sequences);
  return divisor;
}

double BatchRamp::sequences_before(int64_t step) const {
  double sum = 0;
  for (size_t i = 0; i < phases_.size() && phases_[i].first < step; ++i) {
    const int64_t end = i + 1 < phases_.size() ? std::min(step, phases_[i + 1].first) : step;
    sum += static_cast<double>(phases_[i].sequences) * static_cast<double>(end - phases_[i].first);
  }
  return sum;
}

int64_t BatchRamp::steps_for(double sequences) const {
  size_t i = 0;
  while (i + 1 < phases_.size() && sequences_before(phases_[i + 1].first) < sequences) ++i;
  const double left = sequences - sequences_before(phases_[i].first);
  return std::max<int64_t>(1, phases_[i].first + std::llround(std::ceil(left / phases_[i].sequences)));
}

std::string to_text(const BatchRamp& ramp) {
  std::string text;
  for (const auto& [sequences, first] : ramp.phases())
    text += first == 0 ? counted(sequences, "sequence") : concat(", ", sequences, " from step ", first + 1);
  return text;
}

} // namespace gpt2
