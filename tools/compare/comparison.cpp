#include "tools/compare/comparison.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "engine/base/formatted.h"
#include "tools/report/page_data.h"
#include "tools/report/run_table.h"

namespace gpt2 {
namespace {

constexpr size_t kCurvePoints = 200;
constexpr double kLastShare = 0.05; // of the steps: window of the mean training loss
constexpr int64_t kFewestLastSteps = 5;
constexpr size_t kStepsOfPoint = 4; // averaged per point: at unequal steps the noise of a batch does not cancel

// ---- loss at a position of an axis ----

struct Curve {
  std::vector<double> x, y; // finite, x ascending; the last of several records of a step
};

Curve curve_of(const MetricTable& table, const std::string& column, Axis axis) {
  Curve curve;
  if (table.at.empty()) return curve;
  const std::vector<double>& values = table.columns.at(column);
  int64_t last_step = -1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    if (table.at[i].step == last_step) curve.x.pop_back(), curve.y.pop_back();
    last_step = table.at[i].step;
    curve.x.push_back(coordinate(axis, table.at[i]));
    curve.y.push_back(values[i]);
  }
  return curve;
}

Curve validation_of(const RunReader& run, Axis axis) { return curve_of(run.metrics().validations, "val_loss", axis); }
Curve training_of(const RunReader& run, Axis axis) { return curve_of(run.metrics().steps, "loss", axis); }

double interpolated(const Curve& curve, double x) { // NaN outside the curve
  if (curve.x.empty() || x < curve.x.front() || x > curve.x.back()) return kMissing;
  const size_t right = static_cast<size_t>(std::lower_bound(curve.x.begin(), curve.x.end(), x) - curve.x.begin());
  if (curve.x[right] == x) return curve.y[right];
  const double share = (x - curve.x[right - 1]) / (curve.x[right] - curve.x[right - 1]);
  return curve.y[right - 1] + share * (curve.y[right] - curve.y[right - 1]);
}

double mean_before(const Curve& curve, double x) { // mean of the last steps up to x
  const auto end = std::upper_bound(curve.x.begin(), curve.x.end(), x) - curve.x.begin();
  const auto window = std::max<int64_t>(kFewestLastSteps, std::llround(kLastShare * static_cast<double>(end)));
  double sum = 0;
  const auto begin = std::max<int64_t>(0, end - window);
  for (auto i = begin; i < end; ++i) sum += curve.y[static_cast<size_t>(i)];
  return end > begin ? sum / static_cast<double>(end - begin) : kMissing;
}

double loss_at(const RunReader& run, Axis axis, double x, bool of_validation) {
  return of_validation ? interpolated(validation_of(run, axis), x) : mean_before(training_of(run, axis), x);
}

double end_of(const RunReader& run, Axis axis, bool of_validation) {
  const Curve curve = of_validation ? validation_of(run, axis) : training_of(run, axis);
  return curve.x.empty() ? kMissing : curve.x.back();
}

double step_at(const RunReader& run, Axis axis, double x) { // the last step completed at x
  const std::vector<Moment>& at = run.metrics().steps.at;
  const auto after =
      std::find_if(at.begin(), at.end(), [&](const Moment& moment) { return coordinate(axis, moment) > x; });
  return after == at.begin() ? 0 : static_cast<double>(std::prev(after)->step);
}

// ---- pairs ----

struct Pair {
  const RunReader *first, *other;
};

std::vector<Pair> pairs_of(const RunGroup& first, const RunGroup& other) {
  std::vector<Pair> pairs;
  for (const RunReader* a : first.runs)
    for (const RunReader* b : other.runs)
      if (seed_of(*a) == seed_of(*b)) pairs.push_back({a, b});
  return pairs;
}

std::vector<Pair> all_pairs(const RunGroup& first, const RunGroup& other) {
  std::vector<Pair> pairs;
  for (const RunReader* a : first.runs)
    for (const RunReader* b : other.runs) pairs.push_back({a, b});
  return pairs;
}

// ---- where losses are compared ----

// Diverged runs do not limit where the others are compared.
std::vector<const RunReader*> sound_runs(const std::vector<RunGroup>& groups) {
  std::vector<const RunReader*> runs;
  for (const RunGroup& group : groups)
    std::copy_if(group.runs.begin(), group.runs.end(), std::back_inserter(runs),
                 [](const RunReader* run) { return !has_diverged(*run); });
  return runs;
}

// The last position at which every run was validated; NaN: none. No interpolation: a line between two validations lies
// above a flattening curve.
double last_common_validation(Axis axis, const std::vector<const RunReader*>& runs) {
  std::map<double, size_t> seen;
  for (const RunReader* run : runs)
    for (const double x : validation_of(*run, axis).x) ++seen[x];
  double last = kMissing;
  for (const auto& [x, count] : seen)
    if (count == runs.size()) last = x;
  return last;
}

double last_common_step(const std::vector<const RunReader*>& runs) {
  double last = INFINITY;
  for (const RunReader* run : runs) last = std::fmin(last, end_of(*run, Axis::step, false));
  return std::isfinite(last) ? last : 0;
}

struct CommonLoss { // the last loss that all runs have
  bool of_validation;
  double step;
};

CommonLoss last_common_loss(const std::vector<const RunReader*>& runs) {
  if (runs.empty()) return {true, 0}; // all diverged: the verdict explains it
  const double validated = last_common_validation(Axis::step, runs);
  if (!std::isnan(validated)) return {true, validated};
  return {false, last_common_step(runs)};
}

double end_of(const Pair& pair, Axis axis, bool of_validation) { // NaN: one run diverged
  if (has_diverged(*pair.first) || has_diverged(*pair.other)) return kMissing;
  return std::min(end_of(*pair.first, axis, of_validation), end_of(*pair.other, axis, of_validation));
}

std::vector<double> losses_at(const RunGroup& group, Axis axis, double x, bool of_validation) {
  std::vector<double> losses;
  for (const RunReader* run : sound_runs({group})) losses.push_back(loss_at(*run, axis, x, of_validation));
  return losses;
}

// `place`: common to all runs. NaN: the earlier end of each pair, or of all runs if they are not paired.
Gap gap_at(Axis axis, double place, const RunGroup& first, const RunGroup& other, bool paired, bool of_validation) {
  Gap gap;
  const std::vector<Pair> pairs = paired ? pairs_of(first, other) : all_pairs(first, other);
  std::vector<double> places, steps_of_first, steps, differences;
  double common = std::isnan(place) ? INFINITY : place;
  for (const Pair& pair : pairs) common = std::fmin(common, end_of(pair, axis, of_validation));
  for (const Pair& pair : pairs) {
    const double end = end_of(pair, axis, of_validation);
    if (std::isnan(end)) {
      differences.push_back(kMissing); // keeps the index of its seed
      continue;
    }
    const double x = paired && std::isnan(place) ? end : common;
    places.push_back(x);
    steps_of_first.push_back(step_at(*pair.first, axis, x));
    steps.push_back(step_at(*pair.other, axis, x));
    differences.push_back(loss_at(*pair.other, axis, x, of_validation) - loss_at(*pair.first, axis, x, of_validation));
  }
  gap.at = estimate(places).mean;
  gap.step_of_first = estimate(steps_of_first).mean;
  gap.step = estimate(steps).mean;
  if (paired) {
    gap.estimate = estimate(differences);
    gap.by_seed = differences;
    return gap;
  }
  gap.estimate =
      difference(losses_at(first, axis, common, of_validation), losses_at(other, axis, common, of_validation));
  return gap;
}

// ---- gap curves ----

// Mean loss in each interval between edges; an interval without a step is interpolated.
std::vector<double> means_between(const Curve& curve, const std::vector<double>& edges) {
  std::vector<double> means;
  for (size_t i = 1, at = 0; i < edges.size(); ++i) {
    double sum = 0, count = 0;
    for (; at < curve.x.size() && curve.x[at] <= edges[i]; ++at) sum += curve.y[at], ++count;
    means.push_back(count > 0 ? sum / count : interpolated(curve, edges[i]));
  }
  return means;
}

void append(GapCurve& curve, double x, const Estimate& gap) {
  if (!std::isfinite(gap.mean)) return;
  const double reach = std::isfinite(gap.error) ? 2 * gap.error : 0;
  curve.x.push_back(x);
  curve.mean.push_back(gap.mean);
  curve.low.push_back(gap.mean - reach);
  curve.high.push_back(gap.mean + reach);
}

GapCurve training_gap(Axis axis, const std::vector<Pair>& pairs) {
  double end = INFINITY, begin = axis == Axis::step ? INFINITY : 0, fewest = INFINITY;
  for (const Pair& pair : pairs)
    for (const RunReader* run : {pair.first, pair.other}) {
      const Curve curve = training_of(*run, axis);
      if (curve.x.empty()) return {};
      end = std::min(end, curve.x.back());
      fewest = std::min(fewest, static_cast<double>(curve.x.size()));
      if (axis == Axis::step) begin = std::min(begin, curve.x.front() - 1);
    }
  if (pairs.empty() || !(end > begin)) return {};
  const size_t steps = axis == Axis::step ? static_cast<size_t>(end - begin)
                                          : std::max<size_t>(1, static_cast<size_t>(fewest) / kStepsOfPoint);
  const size_t count = std::min(kCurvePoints, steps);
  std::vector<double> edges;
  for (size_t i = 0; i <= count; ++i) {
    const double edge = begin + (end - begin) * static_cast<double>(i) / static_cast<double>(count);
    edges.push_back(axis == Axis::step ? std::round(edge) : edge);
  }
  std::vector<std::vector<double>> differences(count);
  for (const Pair& pair : pairs) {
    const std::vector<double> a = means_between(training_of(*pair.first, axis), edges),
                              b = means_between(training_of(*pair.other, axis), edges);
    for (size_t i = 0; i < count; ++i) differences[i].push_back(b[i] - a[i]);
  }
  GapCurve curve;
  for (size_t i = 0; i < count; ++i) append(curve, edges[i + 1], estimate(differences[i]));
  return curve;
}

// At the validations of the first group.
GapCurve validation_gap(Axis axis, const std::vector<Pair>& pairs) {
  GapCurve curve;
  if (pairs.empty()) return curve;
  const size_t count = validation_of(*pairs.front().first, axis).x.size();
  for (size_t i = 0; i < count; ++i) {
    std::vector<double> differences, places;
    for (const Pair& pair : pairs) {
      const Curve first = validation_of(*pair.first, axis);
      if (i >= first.x.size()) continue;
      places.push_back(first.x[i]);
      differences.push_back(interpolated(validation_of(*pair.other, axis), first.x[i]) - first.y[i]);
    }
    append(curve, estimate(places).mean, estimate(differences));
  }
  return curve;
}

// All pairs of runs: their differences are not independent, so they have no standard error.
void drop_band(GapCurve& curve) { curve.low = curve.high = curve.mean; }

// ---- groups ----

double most_memory(const RunReader& run) {
  const auto& columns = run.metrics().device.columns;
  const auto found = columns.find("gpu_memory_gb");
  double most = kMissing;
  if (found != columns.end())
    for (const double value : found->second) most = std::fmax(most, value);
  return most;
}

std::vector<double> over_runs(const RunGroup& group, double (*value)(const RunReader&)) {
  std::vector<double> out;
  for (const RunReader* run : group.runs) out.push_back(value(*run));
  return out;
}

// At the last loss that these two groups share; other groups do not matter.
GroupGap gap_between(const RunGroup& first, const RunGroup& other, double margin) {
  GroupGap gap;
  const std::vector<Pair> pairs = pairs_of(first, other);
  gap.paired = !pairs.empty();
  for (const Pair& pair : pairs) gap.seeds.push_back(seed_of(*pair.first));
  const std::vector<Pair> drawn = gap.paired ? pairs : all_pairs(first, other);
  const std::vector<const RunReader*> runs = sound_runs({first, other});
  const CommonLoss common = last_common_loss(runs);
  gap.of_validation = common.of_validation;
  for (const Axis axis : kAxes) {
    const size_t at = static_cast<size_t>(axis);
    double place = kMissing; // no two runs share a time
    if (axis == Axis::step) place = common.step;
    if (axis == Axis::tokens && gap.of_validation) place = last_common_validation(axis, runs);
    gap.at[at] = gap_at(axis, place, first, other, gap.paired, gap.of_validation);
    gap.train[at] = training_gap(axis, drawn);
    gap.validation[at] = validation_gap(axis, drawn);
    if (!gap.paired) drop_band(gap.train[at]), drop_band(gap.validation[at]);
  }
  gap.verdict = judge(gap.at[0].estimate, margin);
  if (any_diverged(first) || any_diverged(other)) gap.verdict = {Outcome::diverged, 0};
  return gap;
}

// Empty: the gap is at the same step as the summaries.
std::string note_on_place(const Comparison& comparison, const std::string& name, const GroupGap& gap) {
  const double step = gap.at[static_cast<size_t>(Axis::step)].at;
  if (std::isnan(step) ||
      (gap.of_validation == comparison.of_validation && step == static_cast<double>(comparison.step)))
    return "";
  return "the gap at equal step between " + name + " and " + comparison.groups.front().name + " is of the " +
         (gap.of_validation ? "validation" : "training") + formatted(" loss at step %.0f, the last one in both", step);
}

} // namespace

double coordinate(Axis axis, const Moment& moment) {
  return axis == Axis::step ? static_cast<double>(moment.step) : axis == Axis::tokens ? moment.tokens : moment.seconds;
}

Comparison compare(const std::vector<RunGroup>& groups, double margin) {
  check_groups(groups);
  Comparison out;
  out.groups = groups;
  out.margin = margin;
  out.notes = doubts(groups);
  const CommonLoss common = last_common_loss(sound_runs(groups));
  out.of_validation = common.of_validation;
  out.step = static_cast<int64_t>(common.step);
  if (!out.of_validation)
    out.notes.push_back("no validation is common to all runs: using the training loss of the last steps");
  const double first_speed = estimate(over_runs(groups.front(), typical_speed)).mean;
  for (const RunGroup& group : groups) {
    const Estimate speed = estimate(over_runs(group, typical_speed));
    out.summaries.push_back({estimate(losses_at(group, Axis::step, common.step, common.of_validation)), speed,
                             estimate(over_runs(group, most_memory)), speed.mean / first_speed, trouble_of(group)});
  }
  for (size_t i = 1; i < groups.size(); ++i) {
    out.gaps.push_back(gap_between(groups.front(), groups[i], margin));
    const std::string note = note_on_place(out, groups[i].name, out.gaps.back());
    if (!note.empty()) out.notes.push_back(note);
  }
  return out;
}

} // namespace gpt2
