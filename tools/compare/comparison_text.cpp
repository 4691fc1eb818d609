#include "tools/compare/comparison_text.h"

#include <cmath>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/system/terminal.h"
#include "tools/report/cut_text.h"
#include "tools/report/run_table.h"

namespace gpt2 {
namespace {

using Json = nlohmann::json;

constexpr size_t kColumns = 80, kNameColumns = 24;
constexpr const char* kAxisNames[] = {"step", "tokens", "seconds"};

std::string with_error(const Estimate& value, const char* format) {
  if (!std::isfinite(value.mean)) return "-";
  return formatted(format, value.mean) + (std::isfinite(value.error) ? formatted(" +- %.4f", value.error) : "");
}

std::string shortened(const std::string& name) { return cut_to(name, kNameColumns, Cut::end); }

std::string place_text(Axis axis, const Gap& gap) {
  if (!std::isfinite(gap.at)) return "-";
  if (axis == Axis::step) return formatted("step %.0f", gap.at);
  if (axis == Axis::tokens) return format_count(gap.at) + " tokens";
  return format_duration(gap.at) + formatted(": steps %.0f and %.0f", gap.step_of_first, gap.step);
}

Json json_of(const Estimate& value) {
  return {{"mean", number_json(value.mean)}, {"error", number_json(value.error)}, {"count", value.count}};
}

Json json_of(const GapCurve& curve) {
  return {{"x", numbers_json(curve.x)},
          {"mean", numbers_json(curve.mean)},
          {"low", numbers_json(curve.low)},
          {"high", numbers_json(curve.high)}};
}

} // namespace

std::string verdict_text(const Comparison& c, size_t group) {
  const std::string &name = c.groups[group].name, &first = c.groups.front().name;
  const GroupGap& gap = c.gaps[group - 1];
  const Estimate& at = gap.at[0].estimate;
  const std::string margin = formatted("%g", c.margin) + " nats";
  const std::string numbers = formatted("%+.4f nats, standard error %.4f, ", at.mean, at.error) +
                              counted(at.count, "seed") + (gap.paired ? "" : ", not paired: no common seed");
  const std::string sure = formatted(" Two standard errors with %lld seeds: %.0f %% confidence.",
                                     static_cast<long long>(at.count), 100 * coverage_of_two_errors(at.count));
  switch (gap.verdict.outcome) {
    case Outcome::within:
      return name + " is within " + margin + " of " + first + ": " + numbers + "." + sure;
    case Outcome::better:
    case Outcome::worse:
      return name + " is " + (at.mean > 0 ? "worse" : "better") + " than " + first +
             formatted(" by %.4f nats: ", std::abs(at.mean)) + numbers + "." + sure;
    case Outcome::unclear:
      return counted(at.count, "seed") + " cannot decide whether " + name + " is within " + margin + " of " + first +
             ": " + numbers + ". " +
             (gap.verdict.seeds_needed < 1000 ? formatted("About %.0f seeds are needed.", gap.verdict.seeds_needed)
                                              : "More than 1000 seeds are needed.");
    case Outcome::one_seed:
      return formatted("%+.4f nats with one seed: no conclusion about ", at.mean) + name + " and " + first +
             ". Use 3 seeds or more.";
    case Outcome::diverged: {
      std::vector<std::string> which;
      for (const size_t i : {size_t{0}, group})
        if (!c.summaries[i].trouble.empty()) which.push_back(c.groups[i].name + ": " + c.summaries[i].trouble);
      return "no gap between " + name + " and " + first + ": a run diverged (" + listed(which, "; ") + ").";
    }
    case Outcome::no_number:
      break;
  }
  return name + " and " + first + " have no common loss: no conclusion.";
}

std::vector<std::string> comparison_table(const Comparison& c) {
  std::vector<std::vector<std::string>> rows{{c.of_validation ? "validation loss" : "training loss", "seeds",
                                              formatted("at step %lld", static_cast<long long>(c.step)), "tok/s",
                                              "speed", "memory"}};
  for (size_t i = 0; i < c.groups.size(); ++i) {
    const GroupSummary& s = c.summaries[i];
    rows.push_back({shortened(c.groups[i].name), std::to_string(c.groups[i].runs.size()), with_error(s.loss, "%.4f"),
                    std::isfinite(s.tokens_per_second.mean) ? format_count(s.tokens_per_second.mean) : "-",
                    std::isfinite(s.speed_ratio) ? formatted("%.2fx", s.speed_ratio) : "-",
                    std::isfinite(s.memory_gb.mean) ? formatted("%.1f GB", s.memory_gb.mean) : "-"});
  }
  std::vector<std::string> lines = aligned_columns(rows);

  rows = {{"gap to " + shortened(c.groups.front().name), "mean +- SE", "at"}};
  static constexpr const char* kEqual[] = {"at equal step", "at equal tokens", "at equal time"};
  for (size_t i = 1; i < c.groups.size(); ++i)
    for (const Axis axis : kAxes) {
      const Gap& gap = c.gaps[i - 1].at[static_cast<size_t>(axis)];
      rows.push_back({shortened(c.groups[i].name) + " " + kEqual[static_cast<size_t>(axis)],
                      with_error(gap.estimate, "%+.4f"), place_text(axis, gap)});
    }
  lines.emplace_back();
  for (const std::string& line : aligned_columns(rows)) lines.push_back(line);
  lines.emplace_back();
  const auto add = [&](const std::string& text) { lines.push_back(wrap_text(text, kColumns, 2)); };
  for (size_t i = 0; i < c.groups.size(); ++i)
    if (!c.summaries[i].trouble.empty()) add("note: " + c.groups[i].name + ": " + c.summaries[i].trouble);
  for (const std::string& note : c.notes) add("note: " + note);
  for (size_t i = 1; i < c.groups.size(); ++i) add("verdict: " + verdict_text(c, i));
  return lines;
}

Json comparison_json(const Comparison& c) {
  Json out = {{"margin", c.margin},
              {"step", c.step},
              {"loss", c.of_validation ? "validation" : "training"},
              {"notes", c.notes},
              {"groups", Json::array()}};
  for (size_t i = 0; i < c.groups.size(); ++i) {
    const GroupSummary& s = c.summaries[i];
    Json group = {{"name", c.groups[i].name},
                  {"loss", json_of(s.loss)},
                  {"tokens_per_second", json_of(s.tokens_per_second)},
                  {"memory_gb", json_of(s.memory_gb)},
                  {"speed_ratio", number_json(s.speed_ratio)},
                  {"trouble", s.trouble},
                  {"runs", Json::array()},
                  {"seeds", Json::array()}};
    for (const RunReader* run : c.groups[i].runs) {
      group["runs"].push_back(run->folder());
      group["seeds"].push_back(seed_of(*run));
    }
    if (i > 0) {
      const GroupGap& gap = c.gaps[i - 1];
      group["verdict"] = verdict_text(c, i);
      group["outcome"] = name_of(gap.verdict.outcome);
      group["seeds_needed"] = number_json(gap.verdict.seeds_needed);
      group["paired"] = gap.paired;
      group["gap_loss"] = gap.of_validation ? "validation" : "training";
      for (const Axis axis : kAxes) {
        const size_t at = static_cast<size_t>(axis);
        Json& one = group["gaps"][kAxisNames[at]] = json_of(gap.at[at].estimate);
        one["at"] = number_json(gap.at[at].at);
        one["place"] = place_text(axis, gap.at[at]);
        one["by_seed"] = numbers_json(gap.at[at].by_seed);
        group["train"][kAxisNames[at]] = json_of(gap.train[at]);
        group["validation"][kAxisNames[at]] = json_of(gap.validation[at]);
      }
    }
    out["groups"].push_back(std::move(group));
  }
  return out;
}

} // namespace gpt2
